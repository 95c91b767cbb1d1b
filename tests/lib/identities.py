"""The kits of sites, by an authority of the test's own."""

from collections.abc import Sequence

from fl_lightning.engine.sites.secure.masks import Identity
from lib.certificates import JOINS, signed


class Authority:
    """Signs certificates of any name and any time."""

    def __init__(self) -> None:
        self._own = signed("authority")

    def identity(self, name: str, begins: float = -1, ends: float = 30) -> Identity:
        """A site's certificate, valid from and until some days from now."""
        made = signed(name, self._own, JOINS, days=(begins, ends))
        return Identity(made.pem, made.key_pem, self._own.pem)

    def identities(self, names: Sequence[str]) -> dict[str, Identity]:
        """The certificates of some sites."""
        return {name: self.identity(name) for name in names}
