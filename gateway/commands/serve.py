"""`gateway serve`: one process that serves, or a supervisor of several, until it is told to stop."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

import gateway
from gateway.admission.journal.journal import JournalUnusable
from gateway.app import Gateway
from gateway.client.port import CannotListen
from gateway.clock import SystemClock
from gateway.commands.command import BAD_CONFIG, FAILED, config_option, fail, read
from gateway.commands.running import run, when_told_to_stop
from gateway.config import file
from gateway.identity.keys import KeySetUnusable
from gateway.telemetry import logs
from gateway.telemetry.writer import LineWriter
from gateway.workers.part import Part
from gateway.workers.supervisor import supervise

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Some hundred calls' worth; Python's own 700 is less than two.
_NEW_OBJECTS_BEFORE_COLLECTING = 20_000


@click.command()
@config_option
@click.option("--workers", metavar="N", help="Processes that share the port, or auto. Default: the config's.")
@click.option("--worker", "part", hidden=True)
def serve(path: Path | None, workers: str | None, part: str | None) -> None:
    """Serve calls until SIGTERM or SIGINT, then drain. SIGHUP has the config read again."""
    own = None if part is None else Part(part)
    loaded = read(path, workers=workers, known=None if own is None else own.config)
    if own is not None or loaded.settings.server.workers == 1:
        run_gateway(_serve(loaded, own))
    elif code := run_gateway(supervise(loaded, [sys.executable, *sys.orig_argv[1:]], SystemClock()), on_asyncio=True):
        sys.exit(code)


def run_gateway(work: Coroutine[Any, Any, _Result], *, on_asyncio: bool = False) -> _Result:
    """Return what `work` comes to, or end the process saying why no gateway can start."""
    try:
        return run(work, on_asyncio=on_asyncio)
    except (CannotListen, KeySetUnusable) as error:
        fail(str(error), FAILED)
    except JournalUnusable as error:
        fail(str(error), BAD_CONFIG)


async def _serve(loaded: file.Loaded, part: Part | None) -> None:
    told = asyncio.Event()
    when_told_to_stop(told.set)
    writer = LineWriter() if part is None else LineWriter(part.write)
    given = None if part is None else part.given
    logs.configure(loaded.settings.logging, writer, worker=None if given is None else given.worker)
    writer.start()
    try:
        accepted = None if part is None else part.accepted
        door = Gateway(loaded, writer, SystemClock(), given, accepted=accepted)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, door.reload)
        if part is not None:
            await part.follow(told.set)
        ports = await _started(door, told)
        if ports is None:
            return
        if part is None:  # else the supervisor says it
            tenants, operators = loaded.settings.server.listen.at(ports[0]), loaded.settings.admin.listen.at(ports[1])
            _log.info("gateway %s serves tenants on %s, operators on %s", gateway.__version__, tenants, operators)
        _collect_less()
        if part is not None:
            part.started()
        await told.wait()
        _log.info("told to stop: calls under way may go on for %g s", door.stops_within_s)
        if part is not None:
            part.leaving(door.stops_within_s)
        when_told_to_stop(door.hurry)
        await door.stop()
        if part is not None:
            await part.hand_in(door.figures())
        _log.info("stopped")
    finally:
        writer.close()


async def _started(door: Gateway, told: asyncio.Event) -> tuple[int, int] | None:
    """Start the gateway; return its ports. None where it is told to stop before it has, and nothing of it is left."""
    starting, stopping = asyncio.create_task(door.start()), asyncio.create_task(told.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return await starting
    starting.cancel()
    await asyncio.wait((starting,))
    return None if starting.cancelled() else starting.result()


def _collect_less() -> None:
    """Let the cycle collector look seldom, and never at what lives as long as the process.

    Calls leave hardly any cycles, but make objects enough to start it several times each: that took 15 % of their CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BEFORE_COLLECTING, 20, 20)
