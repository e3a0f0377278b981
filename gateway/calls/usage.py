"""Tokens of one call, as an engine reports them or as the gateway counted them."""

from typing import Literal, NamedTuple

# English text and JSON syntax, with every tokenizer in use: about so many. Of prompts each model learns its own figure.
BYTES_PER_TOKEN = 4


class Usage(NamedTuple):
    """What one call used, in tokens. Cached tokens are part of `prompt`, reasoning tokens part of `completion`."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    source: Literal["engine", "estimated"] = "engine"
