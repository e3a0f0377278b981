"""How many tokens a model's prompts have, before its engine says: learned from those that it counted. No I/O.

The figure follows a median: after a call whose tokens had more bytes each it rises, else it falls, by the same step
however far off the call was. So no single call moves it by more than a step, and whoever wants it elsewhere has to
send half of what the model is sent.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gateway.calls.usage import BYTES_PER_TOKEN, Usage

# What a part of a message that is not text has where the config says nothing else. A picture of about a megapixel
# takes 576 (LLaVA) to 1601 tokens (a tile of Llama 3.2), whatever its base64 weighs.
TOKENS_PER_MEDIA = 1024

# Tokenizers fall back to single bytes, so no token has less; and prose of long words, or indented code, has no more
# for a whole prompt. What is beyond is padding that a client made up.
FEWEST_BYTES, MOST_BYTES = 1.0, 8.0

# Half of all calls have fewer bytes to a token than the median: with a quarter more reserved, most of those fit too.
MARGIN = 1.25

# From 4 bytes to 2 in about fifty calls; and it stays within some percent of the median afterwards.
STEP = 1 / 64

# Smaller bodies move the figure by less: the engine's template is much of their tokens, and little depends on them.
FULL_STEP_BYTES = 4096
_STEP_OF_A_BYTE = STEP / FULL_STEP_BYTES


class Estimate:
    """Of one model: `bytes_per_token` of a body are reserved as one token.

    `media_tokens` says what a part of a message has, by its kind, where that is not `TOKENS_PER_MEDIA`.
    """

    __slots__ = ("_media_tokens", "bytes_per_token")

    def __init__(self, media_tokens: Mapping[str, int] | None = None) -> None:
        self.bytes_per_token = float(BYTES_PER_TOKEN)
        self._media_tokens = media_tokens or {}

    def text(self, size: int) -> int:
        """Return how many tokens `size` bytes may be; never none."""
        return int(size / self.bytes_per_token) or 1

    def media(self, kinds: Iterable[str]) -> int:
        """Return how many tokens parts of these kinds may be."""
        return sum([self._media_tokens.get(kind, TOKENS_PER_MEDIA) for kind in kinds])

    def learn(self, size: int, usage: Usage) -> None:
        """Take in what `size` bytes of text really were; of 0 bytes, or where no engine counted, there is nothing."""
        prompt = usage.prompt
        if not size or not prompt or usage.source != "engine":
            return
        figure = self.bytes_per_token
        change = 1 + (size * _STEP_OF_A_BYTE if size < FULL_STEP_BYTES else STEP)
        if size > prompt * MARGIN * figure:
            figure *= change
        else:
            figure /= change
        if FEWEST_BYTES <= figure <= MOST_BYTES:
            self.bytes_per_token = figure


# For a name that no model has: the call is refused when that is found.
OF_NO_MODEL = Estimate()
UNKNOWN: Mapping[str, Estimate] = MappingProxyType({})
