"""When the config is read again, and what comes of it. Taking it on is whoever's made this: wholly, or not at all.

It is read again when somebody asks (SIGHUP), and when what it was read from has changed and stays as it is from one
look to the next: a file that is being written is not half of what its writer means. Files are looked at by content, so
that it does not matter how they change; Kubernetes has them swapped by a symbolic link.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from gateway import background
from gateway.clock import Clock
from gateway.config import Config, changes, file
from gateway.config.contents import Digests

log = logging.getLogger(__name__)

# Of as many changed keys a line of the log tells.
_TOLD = 20


class Observer(Protocol):
    """Who is told of reloads, for metrics."""

    def loaded(self, at: float) -> None:
        """The process started with a config, so many seconds after the epoch."""

    def reloaded(self, at: float) -> None:
        """Another one holds since then."""

    def refused(self) -> None:
        """One was read that cannot hold."""


@dataclass(frozen=True, slots=True)
class Active:
    """The config that holds: where it was read, the SHA-256 of that file, and since when (seconds since the epoch)."""

    path: Path | None
    sha256: str | None
    loaded_at: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try to read it again, and why it was made. Without `problems` what was read holds."""

    at: float
    because: str
    problems: tuple[str, ...]


class Reload:
    """Reads `path` again, from which `loaded` came; without a path, never.

    `take_on` has the process go by another config, and returns True. Where it raises BadConfig, or returns False
    because the process is `stopping`, it has changed nothing. `accepted` is told each that holds.
    `start` begins to look at the files; `close` ends it.
    """

    def __init__(
        self,
        loaded: file.Loaded,
        take_on: Callable[[Config], Awaitable[bool]],
        *,
        stopping: Callable[[], bool],
        clock: Clock,
        observer: Observer,
        accepted: Callable[[file.Loaded], object] | None = None,
    ) -> None:
        self._path = next(iter(loaded.files), None)
        self._settings = loaded.settings
        self._workers = loaded.workers
        self._seen = loaded.files  # what was read last, whether it holds or not
        self._take_on = take_on
        self._stopping = stopping
        self._clock = clock
        self._observer = observer
        self._accepted = accepted
        self._asked = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.last: Attempt | None = None
        self.active = self._activated(loaded)
        observer.loaded(self.active.loaded_at)

    def start(self) -> None:
        """Begin to look at the files, and to do what is asked."""
        if self._path is not None:
            self._running = background.begin(partial(self._run, self._path), name="config reload")

    async def close(self) -> None:
        """Stop."""
        await background.end(self._running)

    def ask(self) -> None:
        """Have the config read again, soon. Whoever asks while that is under way has it done once more."""
        if self._path is None:
            log.warning("there is no config file to read again")
        elif self._stopping():
            log.warning("config %s is not read again: this gateway is about to stop", self._path)
        else:
            self._asked.set()

    async def _run(self, path: Path) -> None:
        while True:
            because = await self._due()
            try:
                await self._attempt(path, because)
            except Exception:
                log.exception("config %s: reading it again met a defect", path)
                self._refuse(path, Attempt(self._clock.now(), because, ("reading it met a defect: see the log",)))

    async def _due(self) -> str:
        """Wait until there is a reason to read the config again; return it."""
        before: Digests = {}
        while True:
            try:
                async with asyncio.timeout(self._settings.server.watch_config):
                    await self._asked.wait()
            except TimeoutError:
                now = await background.apart(partial(file.digests, self._seen))
                if now == before and now != self._seen:
                    return "its content changed"
                before = now
            else:
                self._asked.clear()
                return "SIGHUP"

    async def _attempt(self, path: Path, because: str) -> None:
        at = self._clock.now()
        try:
            # In a thread: a megabyte of YAML takes seconds, for which no call should wait.
            loaded = await background.apart(partial(file.read, path, workers=self._workers))
            self._seen = loaded.files
            changed = changes.changes(self._settings, loaded.settings)
            _check(path, changed)
            if self._stopping() or not await self._take_on(loaded.settings):
                log.warning("config %s is not taken on: this gateway is about to stop", path)
                return
        except file.BadConfig as error:
            self._seen = error.files or self._seen
            self._refuse(path, Attempt(at, because, tuple(error.problems)))
            return
        self._settings, self.active = loaded.settings, self._activated(loaded)
        self.last = Attempt(at, because, ())
        self._observer.reloaded(self.active.loaded_at)
        if self._accepted is not None:
            self._accepted(loaded)
        log.info("config %s was read again (%s) and holds; changed: %s", path, because, _told(changed))

    def _refuse(self, path: Path, attempt: Attempt) -> None:
        self.last = attempt
        self._observer.refused()
        problems = "; ".join(" ".join(problem.split()) for problem in attempt.problems)
        log.error(
            "config %s was read again (%s) and cannot hold; the one before stays, nothing has changed: %s",
            path,
            attempt.because,
            problems,
        )

    def _activated(self, loaded: file.Loaded) -> Active:
        sha256 = None if self._path is None else loaded.files[self._path]
        return Active(self._path, sha256, self._clock.now())


def _check(path: Path, changed: list[str]) -> None:
    """Refuse what a running process cannot take on: wholly, for half of a config is none that anybody wrote."""
    if restart := changes.need_restart(changed):
        raise file.BadConfig(str(path), [f"{key}: a change of it takes a restart" for key in restart])


def _told(changed: list[str]) -> str:
    if not changed:
        return "nothing"
    more = f" and {len(changed) - _TOLD} more" if len(changed) > _TOLD else ""
    return ", ".join(changed[:_TOLD]) + more
