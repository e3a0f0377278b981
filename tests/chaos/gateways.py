"""Gateways that are killed, stopped and started anew, and what their logs say of each call."""

import json
import signal
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gateway.clock import SystemClock
from tests.processes import Processes, Running

_CLOCK = SystemClock()
_WRITTEN_WITHIN_US = 100_000
_AWAY = "the limit store does not answer"
_BACK = "the limit store answers again"


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
    """One process of a gateway, from its start to its end."""

    place: int
    number: int
    running: Running
    ending: Literal["runs", "killed", "stopped"] = "runs"
    exit_code: int | None = None
    killed_us: int = 2**63
    lingers: bool = False  # told to stop, it did not
    lines: list[Line] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    garbled: list[str] = field(default_factory=list)
    # When this process left its store alone, in microseconds since the epoch; and until when its log is whole.
    away: list[tuple[int, int]] = field(default_factory=list)
    messages_until_us: int = 2**63

    @property
    def name(self) -> str:
        return f"gateway {self.place}, life {self.number} ({self.running.log_path.name})"

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
        self.away = self._find_away()
        if self.ending == "killed":  # lines are written once a second
            self.messages_until_us = max([line.ended_us for line in self.lines], default=0) - _WRITTEN_WITHIN_US

    def _find_away(self) -> list[tuple[int, int]]:
        last_us = max([line.ended_us for line in self.lines], default=0)
        found: list[tuple[int, int]] = []
        since_us, away = 0, 0  # of a cluster several masters may be
        for message in self.messages:
            at_us = _us(message["time"])
            if message["message"].startswith(_AWAY):
                since_us, away = since_us if away else at_us, away + 1
            elif message["message"].startswith(_BACK) and away:
                away -= 1
                if not away:
                    found.append((since_us, at_us))
        return [*found, (since_us, max(since_us, last_us))] if away else found


class GatewaySlot:
    """One gateway: the same config and ports in each of its lives."""

    def __init__(self, processes: Processes, place: int, config: Path) -> None:
        self.place = place
        self.lives: list[Life] = []
        self._processes = processes
        self._config = config

    @property
    def life(self) -> Life:
        return self.lives[-1]

    async def start(self) -> None:
        running = await self._processes.serve(self._config)
        self.lives.append(Life(self.place, len(self.lives), running))

    async def kill(self) -> None:
        life = self.life
        life.ending = "killed"
        life.killed_us = round(_CLOCK.now() * 1_000_000)
        life.running.send(signal.SIGKILL)
        life.exit_code = await life.running.ended()

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


def _us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
