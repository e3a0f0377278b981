"""The engine's side of many streams at once: one timer for all, which writes the events that are due.

A timer for each stream would take as long as the writing.
"""

import asyncio
import json
from collections.abc import Callable
from time import perf_counter_ns
from typing import Self

from bench import wording
from bench.stamped import NUMBER_FIELD, PAUSE_MS, START_FIELD, Shape, shape

# Between the last event that tells its time and the end of a stream: all streams are open and quiet for so long.
QUIET_MS = 1000

_TICK_S = 0.001
_NS_PER_MS = 1_000_000


class Playing:
    """One stream under way. `write` takes what its client is to get next."""

    def __init__(self, number: int, start_ns: int, given: Shape, write: Callable[[bytes], None]) -> None:
        self.slot = number % PAUSE_MS
        self._number = number
        self._start_ns = start_ns
        self._shape = given
        self._write = write
        self._index = 0
        self._sum = 0
        self._quiet = QUIET_MS // PAUSE_MS
        write(wording.STREAM_HEAD + wording.chunk(given.opening))

    @classmethod
    def asked(cls, body: bytes, write: Callable[[bytes], None]) -> Self:
        """Return the stream that a body asks for."""
        fields = json.loads(body)
        return cls(fields[NUMBER_FIELD], fields[START_FIELD], shape(wording.job(body)), write)

    def beat(self) -> bool:
        """Write what is due; return whether there is more to come."""
        since_start = perf_counter_ns() - self._start_ns
        if since_start < 0:
            return True
        if self._index < self._shape.timed:
            self._sum += since_start
            self._write(wording.chunk(self._token(since_start)))
            self._index += 1
            return True
        self._quiet -= 1
        if self._quiet >= 0:
            return True
        # vLLM sends what is behind the last token in the same moment.
        self._write(wording.chunk(self._token(self._sum) + self._shape.ending) + wording.LAST_CHUNK)
        return False

    def _token(self, number: int) -> bytes:
        return self._shape.token(self._index, stream=self._number, value=number)


class Metronome:
    """Plays streams. Each has a slot of one of the milliseconds of a pause, so that they are spread over it."""

    def __init__(self) -> None:
        self._slots: list[set[Playing]] = [set() for _ in range(PAUSE_MS)]
        self._played_ms = 0
        self._timer: asyncio.TimerHandle | None = None

    def join(self, stream: Playing) -> None:
        """Play a stream until its end, or until it leaves."""
        self._slots[stream.slot].add(stream)
        if self._timer is None:
            self._played_ms = perf_counter_ns() // _NS_PER_MS
            self._play()

    def leave(self, stream: Playing) -> None:
        """Play a stream no more."""
        self._slots[stream.slot].discard(stream)

    def _play(self) -> None:
        # Of what it is behind with, one event of each stream at a time: others that ask must not wait for all of it.
        until_ms = min(perf_counter_ns() // _NS_PER_MS, self._played_ms + PAUSE_MS)
        for ms in range(self._played_ms + 1, until_ms + 1):
            for stream in tuple(self._slots[ms % PAUSE_MS]):
                if not stream.beat():
                    self.leave(stream)
        self._played_ms = until_ms
        playing = any(self._slots)
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._play) if playing else None
