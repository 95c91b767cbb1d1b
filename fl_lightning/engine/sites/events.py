"""What happens at the sites of a federation, as values: each says which site, and the messages what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Message = Sequence[bytes]  # a head of JSON and bodies of tensors, carried as they lie


@dataclass(frozen=True)
class Heard:
    """A carrier has a message of a site, from an address that is empty where the carrier knows none."""

    site: str
    message: Message
    address: str = ""

    @property
    def sender(self) -> str:
        """The site's name, and its address if that is known."""
        return f"{self.site} ({self.address})" if self.address else self.site


@dataclass(frozen=True)
class Gone:
    """A site is no longer connected."""

    site: str


@dataclass(frozen=True)
class Came:
    """A site that was let in can train from now on."""

    site: str


@dataclass(frozen=True)
class Answered:
    """A site has sent what is neither a welcome nor a word that it can train."""

    site: str
    message: Message
