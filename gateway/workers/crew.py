"""The workers of one gateway, kept at their number: one that dies is replaced, and what it counted is kept."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

import gateway
from gateway import config
from gateway.client.port import CannotListen, bind
from gateway.clock import Clock
from gateway.telemetry.figures import Figures
from gateway.telemetry.tenants import TenantLabels
from gateway.workers import held, merge, worker
from gateway.workers.held import Held
from gateway.workers.pause import Pauses
from gateway.workers.worker import Worker

_log = logging.getLogger(__name__)

# What a worker may take to end beyond the time that its calls get, before it is killed: all that it waits for is
# bounded, to some seven seconds.
_MARGIN_S = 15.0
_LOOK_EVERY_S = 1.0
_FAILED = 1
# How a worker ends that is told to: the second where it was told before it could listen.
_AS_TOLD = (0, -signal.SIGTERM)


class Crew:
    """`settings.server.workers` processes of `command`. `lines` is the lock around log lines, which they share.

    They begin with `config`, until another holds in one of them. `restarts` is how many were started in the place of
    others.
    """

    def __init__(
        self, settings: config.Server, command: Sequence[str], clock: Clock, *, lines: int, config: Held = held.NONE
    ) -> None:
        self.stopping = asyncio.Event()
        self.restarts = 0
        self.complete = False
        self._settings = settings
        self._command = command
        self._clock = clock
        self._lines = lines
        self._config = config
        self._tenants = TenantLabels(config.tenants, max_tenants=config.max_tenants)
        self._ended: Figures = {}  # of all that have, as one
        self._listen = settings.listen
        self._workers: dict[int, Worker] = {}
        self._up = asyncio.Event()
        self._code = 0

    @property
    def size(self) -> int:
        """How many workers there should be."""
        return self._settings.workers

    @property
    def workers(self) -> list[Worker]:
        """Those that have started and not ended, in their order."""
        return [one for _, one in sorted(self._workers.items()) if one.started.is_set()]

    def figures(self) -> tuple[list[Figures], Figures]:
        """Return the last figures of each that runs, and those of all that have ended, as one.

        Of several processes a scrape has no more tenants than of one, nor replicas that nobody has any more.
        """
        running = [merge.bounded(one.figures, self._tenants.label) for one in self.workers]
        self._ended = merge.here(merge.bounded(self._ended, self._tenants.label), running)
        return running, self._ended

    @property
    def in_turn(self) -> list[Worker]:
        """The same in the order in which they are asked for all: those first that answered the last scrape."""
        return sorted(self.workers, key=lambda one: (one.silent, one.number))

    async def run(self) -> int:
        """Keep all workers until they are told to stop, and have ended; return the exit code.

        A first one that cannot start ends it too, and has said why.
        """
        # The others after the first: what keeps one from starting keeps all, and should be said once.
        keeping = [asyncio.create_task(self._keep(0))]
        stopping, up = asyncio.create_task(self.stopping.wait()), asyncio.create_task(self._up.wait())
        await asyncio.wait((up, stopping, *keeping), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if not self.stopping.is_set() and not keeping[0].done():
            keeping += [asyncio.create_task(self._keep(number)) for number in range(1, self.size)]
        await asyncio.wait((stopping, *keeping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self.stopping.is_set():  # who has been told already would wait for no call
            self.stop()
        await self._gone(keeping)
        await asyncio.gather(*keeping)
        return self._code

    def stop(self) -> None:
        """Let workers end; told again, they wait for no call."""
        self.stopping.set()
        self._send(signal.SIGTERM)

    def reload(self) -> None:
        """Have every worker reload."""
        for one in self._workers.values():
            one.reload()

    async def _gone(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all have ended; kill those that take longer than they say that they may."""
        began, allowed_s = self._clock.monotonic(), self._settings.drain_delay + self._settings.drain_timeout
        while not all(one.done() for one in keeping):
            said = [one.leaves_within_s for one in self._workers.values() if one.leaves_within_s is not None]
            left_s = max([allowed_s, *said]) + _MARGIN_S - (self._clock.monotonic() - began)
            if left_s <= 0:
                _log.error("%d workers did not end in time, and are killed", len(self._workers))
                self._send(signal.SIGKILL)
                self._code = _FAILED
                return
            await asyncio.wait(keeping, timeout=min(left_s, _LOOK_EVERY_S))

    def _send(self, number: signal.Signals) -> None:
        for one in self._workers.values():
            one.send(number)

    async def _keep(self, number: int) -> None:
        """Have worker `number`, whatever becomes of it, until all are to stop."""
        pauses, tenants, pause_s = Pauses(), self._bound(), 0.0
        while not self.stopping.is_set():
            began = self._clock.monotonic()
            try:
                tenants = tenants or self._bound()
                code, started = await self._have(number, tenants)
            except (CannotListen, OSError) as error:
                if not self._up.is_set():
                    _close(tenants)
                    raise
                pause_s = pauses.next(0.0)
                _log.error("worker %d cannot be started (%s); it is tried again in %g s", number, error, pause_s)
                await self._wait(pause_s)
                continue
            if self.stopping.is_set():
                self._code = self._code or (0 if code in _AS_TOLD else _FAILED)
                break
            if not started and not self._up.is_set():
                self._fail(number, code)
                break
            pause_s = pauses.next(self._clock.monotonic() - began)
            _log.error("worker %d ended (%s); another starts in %g s", number, _end(code), pause_s)
            if pause_s or not code:  # clients that wait in its sockets would wait for too long, or it has closed them
                _close(tenants)
                tenants = []
                with suppress(CannotListen):  # else it is tried again below
                    tenants = self._bound()
            await self._wait(pause_s)
            self.restarts += 1
        _close(tenants)

    async def _have(self, number: int, tenants: Sequence[socket.socket]) -> tuple[int, bool]:
        """Start a worker and wait until it has ended; return its exit code, and whether it had started."""
        one = await worker.start(
            number, self._command, tenants, lines=self._lines, config=self._config, accepted=self._accept
        )
        self._workers[number] = one
        if self.stopping.is_set():
            one.send(signal.SIGTERM)
        starting = asyncio.create_task(one.started.wait())
        starting.add_done_callback(lambda done: None if done.cancelled() else self._count())
        code = await one.ended()
        starting.cancel()
        del self._workers[number]
        self._ended = merge.grown((self._ended, merge.bounded(one.figures, self._tenants.label)))
        return code, one.started.is_set()

    def _accept(self, config: Held) -> None:
        self._config = config
        self._tenants.configure(config.tenants, max_tenants=config.max_tenants)

    def _count(self) -> None:
        self._up.set()
        if not self.complete and len(self.workers) == self.size:
            self.complete = True
            _log.info("gateway %s serves tenants on %s by %d workers", gateway.__version__, self._listen, self.size)

    def _fail(self, number: int, code: int) -> None:
        if code <= 0:  # one that was killed has said nothing
            _log.critical("worker %d could not start (%s)", number, _end(code))
        self._code = max(_FAILED, code)
        self.stop()

    async def _wait(self, pause_s: float) -> None:
        stopping = asyncio.create_task(self.stopping.wait())
        await asyncio.wait((stopping,), timeout=pause_s)
        stopping.cancel()

    def _bound(self) -> list[socket.socket]:
        """Return sockets of a worker's own on the gateway's port."""
        bound = bind(self._listen, shared=True)
        self._listen = self._listen.at(self._listen.port or bound[0].getsockname()[1])
        return bound


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed: {signal.strsignal(-code) or os.strerror(0)}"
