"""Engines that die and return, and what they say that they generated: their accounts, read when all is over."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.processes import Processes, Running


@dataclass
class Attempt:
    """One request as its engine saw it. Times are microseconds since the epoch, `tokens_us` one for each token."""

    replica: str
    request_id: str
    began_us: int
    prompt: int
    seed: int
    tokens_us: list[int] = field(default_factory=list)
    ended: bool = False
    cut_us: int | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens_us)

    @property
    def over_us(self) -> int:
        """When it was over, as far as its engine lived to see it."""
        return self.cut_us or (self.tokens_us or [self.began_us])[-1]


class EngineSlot:
    """One replica: the same port in each of its lives, an account for each."""

    def __init__(self, processes: Processes, directory: Path, *, name: str, model: str, pace: float) -> None:
        self.name = name
        self.model = model
        self.running: Running | None = None
        self.lives = 0
        self._processes = processes
        self._directory = directory
        self._port = free_port()
        self._pace = pace

    @property
    def replica(self) -> str:
        """What the gateway calls it."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"http://{self.replica}"

    async def start(self) -> None:
        account = self._directory / f"account-{self.name}-{self.lives}"
        self.lives += 1
        self.running = await self._processes.engine(
            self.model, tokens_per_second=self._pace, port=self._port, account=account
        )

    def attempts(self) -> list[Attempt]:
        """Return all requests of all lives."""
        found = []
        for life in range(self.lives):
            found += self._read(self._directory / f"account-{self.name}-{life}")
        return found

    def _read(self, path: Path) -> list[Attempt]:
        attempts: dict[int, Attempt] = {}
        for line in path.read_bytes().splitlines():
            at_us, step, number, *rest = json.loads(line)
            match step:
                case "began":
                    request_id, prompt, seed = rest
                    attempts[number] = Attempt(self.replica, request_id, at_us, prompt, seed)
                case "token":
                    attempts[number].tokens_us.append(at_us)
                case "ended":
                    attempts[number].ended = True
                case "cut":
                    attempts[number].cut_us = at_us
        return list(attempts.values())
