"""Where a call is booked, and what: a line of its tenant's ledger, and what its usage adds there. Values only."""

from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import quote, unquote

from gateway.calls.usage import Usage

Counter = Literal[
    "calls",
    "refused",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "estimated_tokens",
]
COUNTERS: tuple[Counter, ...] = get_args(Counter)


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Whose call it is. `tag` is the tenant's part of every key, so that all its keys live in one slot of a cluster.

    Compared by identity, as limits are: one is made for each principal and model, and remembered with them.
    """

    tenant: str
    key: str
    model: str
    tag: str

    @property
    def unbooked(self) -> "Account":
        """The same without a model: of what is reserved or charged for that, nothing is booked."""
        return Account(self.tenant, self.key, "", self.tag)

    @property
    def line(self) -> str:
        """Key and model as the store writes them: printable ASCII, with one space between."""
        return f"{encoded(self.key)} {encoded(self.model)}"


# Of the limits that are everybody's nothing is booked, and on a cluster they are in a slot of their own.
EVERYBODYS = Account(tenant="", key="", model="", tag="all")

# What is booked of a call that a limit refused.
REFUSED: list[tuple[Counter, int]] = [("refused", 1)]


def booked(usage: Usage) -> list[tuple[Counter, int]]:
    """Return what a call adds that an engine took: itself first, and of its usage what is not zero."""
    prompt, completion, cached, reasoning, source = usage
    figures: list[tuple[Counter, int]] = [
        ("calls", 1),
        ("prompt_tokens", prompt),
        ("completion_tokens", completion),
        ("cached_tokens", cached),
        ("reasoning_tokens", reasoning),
    ]
    if source == "estimated":
        figures.append(("estimated_tokens", prompt + completion))
    return [booking for booking in figures if booking[1]]


def encoded(name: str) -> str:
    """Return a name in printable ASCII without spaces, from which `decoded` makes it again."""
    return quote(name, safe="", errors="surrogatepass")


def decoded(text: str) -> str:
    """Return the name that was `encoded`."""
    return unquote(text, errors="surrogatepass")
