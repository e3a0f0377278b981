"""A tokenizer without a vocabulary file: text in, a token count out; token numbers in, words out."""

from collections.abc import Iterable

BYTES_PER_TOKEN = 4

_PLAIN = """the of and to in is that for was on as with by at from are this which or had not have one an were but been
more when light water hand stone river house morning small long old great under over near very each first last year day
way part place work line"""
# Two to four bytes a character, and a line end: whatever splits or decodes text wrongly shows it.
_AWKWARD = (",", ".", "\n", " café", " naïve", " Zürich", " 東京", " 🙂")
WORDS = tuple(f" {word}" for word in _PLAIN.split()) + _AWKWARD


def count(text: str) -> int:
    """Return how many tokens `text` is: one for every four bytes begun."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def decode(tokens: Iterable[int]) -> str:
    """Return the text of token numbers; any integer is a token."""
    return "".join(WORDS[token % len(WORDS)] for token in tokens)
