"""Streams of which every byte is known beforehand, but for when each event was sent: that, the event itself tells.

The text of a token is `1234.5678.123456789012345`: its stream's number, its own, and the nanoseconds from the common
start of all streams to its sending. The last token tells the sum of them instead: no time can change unnoticed.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from bench import wording
from gateway.engine.generation import Generation
from gateway.engine.job import Job

# Fields of a body that are not OpenAI's: the stream's number, and the start of all, in `perf_counter_ns`, which is the
# same clock in every process.
NUMBER_FIELD = "bench_stream"
START_FIELD = "bench_start_ns"
# 20 events a second and stream.
PAUSE_MS = 50

_TEXT = b"%04d.%04d.%015d"
_PLACE = (_TEXT % (0, 0, 0)).decode()
_VALUE_AT = _PLACE.rindex(".") + 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The events of such a stream: one that opens it, one for each token, and those that end it.

    `tokens` holds what stands before and behind the text of each; `sizes` is the length of every event.
    """

    opening: bytes
    tokens: Sequence[tuple[bytes, bytes]]
    ending: bytes
    sizes: Sequence[int]

    @property
    def timed(self) -> int:
        """How many tokens tell their time: all but the last."""
        return len(self.tokens) - 1

    def token(self, index: int, *, stream: int, value: int) -> bytes:
        """Return the event of a token; `value` is its time, or the sum of all."""
        before, behind = self.tokens[index]
        return before + _TEXT % (stream, index, value) + behind


@functools.lru_cache(maxsize=8)
def shape(job: Job) -> Shape:
    """Return the shape of a job's answer."""
    answer, generation = wording.answer(job), Generation(job)
    opening, tokens = b"".join(answer.openings(generation)), []
    while generation.running:
        for choice, _ in generation.step():
            before, _, behind = answer.token(choice, _PLACE).partition(_PLACE.encode())
            tokens.append((before, behind))
    ending = b"".join(answer.endings(generation))
    sizes = [len(before) + len(_PLACE) + len(behind) for before, behind in tokens]
    return Shape(opening, tokens, ending, sizes=[len(opening), *sizes, len(ending)])


class Reading:
    """The body of one stream as it comes: each event is compared with what it must be. An event ends where that ends.

    `delays` gets, of each event that tells its time, the nanoseconds it was on its way; `late_ns` is how late the
    engine sent the latest. `right` is false for good once a byte was wrong; `events` is how many were right.
    """

    def __init__(self, given: Shape, stream: int, delays: list[int]) -> None:
        self.right = True
        self.events = 0
        self.late_ns = 0
        self._shape = given
        self._stream = stream
        self._delays = delays
        self._sizes = given.sizes
        self._sum = 0
        self._rest = b""

    @property
    def whole(self) -> bool:
        """Whether all came, all of it right."""
        return self.right and self.events == len(self._sizes) and not self._rest

    def feed(self, data: bytes, since_start_ns: int) -> None:
        """Take in the next bytes, which came at this time."""
        if self._rest:
            data = self._rest + data
        at = 0
        while self.right and self.events < len(self._sizes):
            end = at + self._sizes[self.events]
            if end > len(data):
                break
            self.right = self._is_right(data[at:end], since_start_ns)
            self.events += self.right
            at = end
        self._rest = data[at:]

    def _is_right(self, event: bytes, since_start_ns: int) -> bool:
        index = self.events - 1
        if index < 0:
            return event == self._shape.opening
        if index > self._shape.timed:
            return event == self._shape.ending
        before, behind = self._shape.tokens[index]
        told = event[len(before) + _VALUE_AT : len(event) - len(behind)]
        if not told.isdigit() or event != self._shape.token(index, stream=self._stream, value=int(told)):
            return False
        if index == self._shape.timed:
            return int(told) == self._sum
        self._sum += int(told)
        self.late_ns = int(told) - index * PAUSE_MS * 1_000_000
        self._delays.append(since_start_ns - int(told))
        return True
