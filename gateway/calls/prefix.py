"""How the prompt of a valid body begins -> numbers that the calls of one tenant which begin alike share.

Engines keep what they computed of a prompt: a call that begins alike is answered sooner by the replica which has it.
A number has to stay the same while a conversation grows, and to be the same in every gateway. It is the tenant's, too:
who begins a call with what another tenant wrote is not led to where that was computed, to learn from the answer's speed
that somebody wrote it.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

# The shorter beginning first; the longer tells apart those that open alike.
Prefixes: TypeAlias = tuple[int, ...]

# The client's own word for which calls belong together, before what they begin with.
SESSION_FIELDS = ("prompt_cache_key", "session_id")
# Characters of a message, or of a session's name, that are looked at: different questions behind one long document go
# together, and how long it takes tells nobody whether there is such a model.
LEADING = 2048
# Characters, or token ids, of a prompt without messages that are looked at, and of a longer one for the second number.
SHORT, LONG = 2048, 8192
# A prompt shorter than that is looked at in whole blocks, so that one which grows keeps its number for a while.
BLOCK = 256
_TAIL = 64  # of what is not text: pictures of one kind and size begin alike


def prefixes_of(document: dict[str, Any], *, tenant: str) -> Prefixes:
    """Return the prefixes of a valid call: of its session; else of its messages, or its (first) prompt."""
    for name in SESSION_FIELDS:
        session = document.get(name)
        if session and isinstance(session, str):
            return _numbers(tenant, iter((f"session\0{session[:LEADING]}",)))
    messages = document.get("messages")
    return _numbers(tenant, _openings(messages) if messages else _beginnings(document["prompt"]))


def _openings(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the messages up to the first of the user, then those up to the second."""
    leading: list[str] = []
    openings = 0
    for message in messages:
        leading.append(message["role"])
        content = message.get("content")
        if isinstance(content, str):
            leading.append(content[:LEADING])
        elif content:
            leading.extend(_parts(content))
        if message["role"] == "user":
            yield "\0".join(leading)
            leading.clear()
            openings += 1
            if openings == 2:  # noqa: PLR2004 no conversation needs a third to be told from others
                return
    if not openings:
        yield "\0".join(leading)


def _parts(parts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        text = part.get("text")
        if isinstance(text, str):
            yield text[:LEADING]
            continue
        for value in part.values():
            if isinstance(value, dict):
                yield from (inner[-_TAIL:] for inner in value.values() if isinstance(inner, str))


def _beginnings(prompt: str | Sequence[Any]) -> Iterator[str]:
    """Yield the blocks of a prompt up to the `SHORT`, then those up to the `LONG`."""
    if not isinstance(prompt, str) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    whole = min(len(prompt), SHORT) // BLOCK * BLOCK or len(prompt)
    yield _text(prompt[:whole])
    if len(prompt) >= LONG:
        yield _text(prompt[whole:LONG])


def _text(prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else ",".join(map(str, prompt))


def _numbers(tenant: str, pieces: Iterator[str]) -> Prefixes:
    """Return a number for each piece and all before it."""
    digest = blake2b(f"{tenant}\0".encode("utf-8", "surrogatepass"), digest_size=8)
    numbers = []
    for piece in pieces:
        digest.update(piece.encode("utf-8", "surrogatepass"))
        numbers.append(int.from_bytes(digest.digest(), "big"))
    return tuple(numbers)
