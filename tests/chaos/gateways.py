"""Gateways of one process or several that are killed, stopped, reloaded and started anew, and what their logs say."""

import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gateway.clock import SystemClock
from tests.processes import Processes, Running, until

# Microseconds since the epoch, from and until.
Span = tuple[int, int]

_CLOCK = SystemClock()
# Lines are written once a second: so much of a log is lost with its process.
_UNWRITTEN_US = 1_500_000
_WRITTEN_WITHIN_US = 100_000
_AWAY = "the limit store does not answer"
_BACK = "the limit store answers again"
_ENDED = re.compile(r"worker (\d+) ended \(killed")
_EVER_US = 2**63


@dataclass
class Line:
    """One line of an access log."""

    inference_id: str
    ended_us: int
    fields: dict[str, Any]
    life: "Life"

    @property
    def began_us(self) -> int:
        return self.ended_us - round(float(self.fields["duration_ms"]) * 1000)

    @property
    def account(self) -> tuple[str, str, str]:
        return self.fields["tenant"], self.fields["key"], self.fields["model"]


@dataclass
class Life:
    """One gateway from its start to its end: a process, or a supervisor with `workers`.

    killed: all of it at once. orphaned: its supervisor alone, after which workers stop by themselves.
    """

    place: int
    number: int
    running: Running
    ending: Literal["runs", "killed", "orphaned", "stopped"] = "runs"
    exit_code: int | None = None
    killed_us: int = _EVER_US
    workers: int = 1
    lost: list[int] = field(default_factory=list)  # when one of its workers was killed
    lingers: bool = False  # told to stop, it did not
    lines: list[Line] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    garbled: list[str] = field(default_factory=list)
    # When a process of it left its store alone, and when all of them did. What is unsure was lost with its log.
    away: list[Span] = field(default_factory=list)
    alone: list[Span] = field(default_factory=list)
    unsure: list[Span] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"gateway {self.place}, life {self.number} ({self.running.log_path.name})"

    @property
    def kills(self) -> list[int]:
        """When it, or a worker of it, was killed."""
        return [*self.lost, self.killed_us] if self.ending == "killed" else self.lost

    @property
    def processes(self) -> int:
        """How many processes served calls, one after another or at once."""
        return self.workers + len(self.lost)

    def read_log(self) -> None:
        """Take the log apart. The last line of a killed process may be cut."""
        text = self.running.log
        for line in text.splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                if self.ending != "killed" or not text.endswith(line):
                    self.garbled.append(line)
                continue
            if "outcome" in fields:
                self.lines.append(Line(fields["inference_id"], _us(fields["time"]), fields, self))
            else:
                self.messages.append(fields)
        spans = self._away_by_worker()
        self.away = [span for each in spans for span in each]
        self.alone = spans[0]
        for each in spans[1:]:
            self.alone = [*_common(self.alone, each)]
        self.unsure = [(at_us - _UNWRITTEN_US, at_us) for at_us in self.lost]
        if self.ending == "killed":
            self.unsure.append((self._last_us - _WRITTEN_WITHIN_US, _EVER_US))

    def is_of_a_kill(self, message: dict[str, Any]) -> bool:
        """Whether a message tells of a worker that was killed."""
        return bool(self.lost) and _ENDED.match(message["message"]) is not None

    @property
    def _last_us(self) -> int:
        return max([line.ended_us for line in self.lines], default=0)

    def _away_by_worker(self) -> list[list[Span]]:
        messages: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for message in self.messages:
            ended = _ENDED.match(message["message"])
            messages[int(ended[1]) if ended else message.get("worker", 0)].append(message)
        return [self._away(messages[number]) for number in range(self.workers)]

    def _away(self, messages: list[dict[str, Any]]) -> list[Span]:
        """Return when one process was without its store, and those that came in its place."""
        found: list[Span] = []
        since_us, away = 0, 0  # of a cluster several masters may be
        for message in messages:
            at_us = _us(message["time"])
            if message["message"].startswith(_AWAY):
                since_us, away = since_us if away else at_us, away + 1
            elif away and (message["message"].startswith(_BACK) or _ENDED.match(message["message"])):
                away = 0 if _ENDED.match(message["message"]) else away - 1
                if not away:
                    found.append((since_us, at_us))
        return [*found, (since_us, max(since_us, self._last_us))] if away else found


class GatewaySlot:
    """One gateway: the same ports in each of its lives. `written_s` is when its config was last changed."""

    def __init__(self, processes: Processes, place: int, config: Path, *, workers: int) -> None:
        self.place = place
        self.workers = workers
        self.config = config
        self.written_s = 0.0
        self.lives: list[Life] = []
        self._processes = processes

    @property
    def life(self) -> Life:
        return self.lives[-1]

    async def start(self) -> None:
        running = await self._processes.serve(self.config)
        self.lives.append(Life(self.place, len(self.lives), running, workers=self.workers))

    async def kill(self) -> None:
        """Kill all of it."""
        life, workers = self.life, self._pids()
        life.ending = "killed"
        life.killed_us = _now_us()
        life.running.send(signal.SIGKILL)
        for pid in workers:
            _send(pid, signal.SIGKILL)
        life.exit_code = await life.running.ended()
        await until(_gone(workers))

    async def orphan(self) -> None:
        """Kill its supervisor, and wait until its workers have ended."""
        life, workers = self.life, self._pids()
        life.ending = "orphaned"
        life.running.send(signal.SIGKILL)
        life.exit_code = await life.running.ended()
        try:
            await until(_gone(workers))
        except TimeoutError:
            life.lingers = True
            for pid in workers:
                _send(pid, signal.SIGKILL)

    def kill_worker(self, number: int) -> None:
        """Kill one of those that there are; another comes in its place."""
        workers = self._pids()
        if workers:
            self.life.lost.append(_now_us())
            _send(workers[number % len(workers)], signal.SIGKILL)

    def freeze(self, number: int) -> int:
        """Freeze a process that serves calls; return which, for `thaw`."""
        workers = self._pids() or [self.life.running.pid]
        pid = workers[number % len(workers)]
        _send(pid, signal.SIGSTOP)
        return pid

    def thaw(self, pid: int) -> None:
        _send(pid, signal.SIGCONT)

    async def stop(self) -> None:
        life = self.life
        life.ending = "stopped"
        life.running.send(signal.SIGTERM)
        try:
            life.exit_code = await life.running.ended()
        except TimeoutError:
            life.lingers = True
            life.running.send(signal.SIGKILL)
            life.exit_code = await life.running.ended()

    def reload(self, text: str) -> None:
        """Change its config, and have it read if it is up."""
        draft = self.config.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.config)
        self.written_s = _CLOCK.now()
        if self.life.ending == "runs":
            self.life.running.send(signal.SIGHUP)

    def _pids(self) -> list[int]:
        return self.life.running.workers if self.workers > 1 else []


def _common(some: list[Span], others: list[Span]) -> Iterator[Span]:
    for since, till in some:
        for from_us, to_us in others:
            if max(since, from_us) < min(till, to_us):
                yield max(since, from_us), min(till, to_us)


def _gone(pids: list[int]) -> Any:
    async def gone() -> bool:
        return not any(map(_runs, pids))

    return gone


def _runs(pid: int) -> bool:
    """Whether it has not ended; nobody may have asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _now_us() -> int:
    return round(_CLOCK.now() * 1_000_000)


def _us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
