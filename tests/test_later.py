"""Arguments that came later, as their classes declare them."""

from typing import Any

from fl_lightning.later import later, later_arguments


class Base:
    """Took ``share`` from the first, and ``shift`` later."""

    @later(shift=None)
    def __init__(self, share: float = 0.0, shift: str | None = None) -> None: ...


class Passing(Base):
    """Passes what it does not name to the base class."""

    def __init__(self, size: int = 1, **settings: Any) -> None: ...


class Naming(Base):
    """Had an argument of its own before the base class had one of this name."""

    @later(size=2)
    @later(names=())
    def __init__(self, shift: str | None = None, size: int = 2, names: tuple[str, ...] = ()) -> None: ...


class Without(Naming):
    """Has no constructor."""


def test_a_class_has_what_its_constructors_declare() -> None:
    assert later_arguments(Base) == {"shift": None}
    assert later_arguments(Passing) == {"shift": None}


def test_an_argument_is_that_of_the_first_constructor_that_names_it() -> None:
    """That of the class, where its own runs of before have the argument, whatever the base class says."""
    assert later_arguments(Naming) == {"size": 2, "names": ()}
    assert later_arguments(Without) == {"size": 2, "names": ()}


def test_a_declaration_changes_no_constructor() -> None:
    """Parsers and editors read the constructor as it is written."""

    def constructor(self: object, shift: str | None = None) -> None: ...

    assert later(shift=None)(constructor) is constructor
