"""Commands as the protocol writes them."""

from collections.abc import Sequence

from hiredis import pack_command


def pack(words: Sequence[str | int]) -> bytes:
    """Return a command as bytes."""
    packed: bytes = pack_command(tuple(words))  # type: ignore[arg-type] # its stub has a tuple of one
    return packed
