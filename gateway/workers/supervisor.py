"""The process that starts workers and serves their operators. It serves no tenant, and ends when all workers have."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from gateway import config
from gateway.client.port import BACKLOG, check_free, explained
from gateway.clock import Clock
from gateway.config import file
from gateway.telemetry import logs
from gateway.telemetry.writer import LineWriter
from gateway.workers import held
from gateway.workers.crew import Crew
from gateway.workers.pages import Pages
from gateway.workers.part import write_in_turn

_LEFTOVERS_S = 0.5


async def supervise(loaded: file.Loaded, command: Sequence[str], clock: Clock) -> int:
    """Have `server.workers` processes of `command` until SIGTERM or SIGINT; return the exit code.

    They begin with the config that was `loaded`, or with the last that holds in one of them.

    Raises:
        CannotListen: an address cannot be had.
    """
    settings = loaded.settings
    lines = os.memfd_create("gateway-lines")
    writer = LineWriter(partial(write_in_turn, lines))
    logs.configure(settings.logging, writer)
    writer.start()
    try:
        crew = Crew(settings.server, command, clock, lines=lines, config=held.of(loaded))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, crew.stop)
        loop.add_signal_handler(signal.SIGHUP, crew.reload)
        if not settings.server.reuse_port:
            check_free(settings.server.listen)
        async with _listening(crew, settings.admin.listen, clock):
            return await crew.run()
    finally:
        writer.close()


@asynccontextmanager
async def _listening(crew: Crew, address: config.Listen, clock: Clock) -> AsyncIterator[None]:
    """Serve operators."""
    runner = web.AppRunner(Pages(crew, clock).build(), access_log=None, shutdown_timeout=_LEFTOVERS_S)
    await runner.setup()
    try:
        with explained(address, key="admin.listen"):
            await web.TCPSite(runner, address.host, address.port, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()
