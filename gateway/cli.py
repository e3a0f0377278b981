"""The `gateway` command. Errors go to stderr and say what, where and what to do; exit codes are 0, 1 and 2."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

import gateway
from gateway.app import CannotListen, Gateway
from gateway.clock import SystemClock
from gateway.config import Config, file, units
from gateway.demo import run_demo
from gateway.engine.server import serve_engine
from gateway.identity import development
from gateway.identity.keys import KeySetUnusable
from gateway.telemetry import logs
from gateway.telemetry.writer import LineWriter

_log = logging.getLogger(__name__)

FAILED = 1
BAD_CONFIG = 2

_NO_RELOAD = "the config is read at start only; to apply a change, start another gateway and end this one with SIGTERM"

# Some hundred calls' worth; Python's own 700 is less than two.
_NEW_OBJECTS_BEFORE_COLLECTING = 20_000

_config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The config file. Default: $GATEWAY_CONFIG, or config.yaml.",
)


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return units.seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """The front door of LLM inference pools."""


@main.command()
@_config_option
def serve(path: Path | None) -> None:
    """Serve calls until SIGTERM or SIGINT, then drain."""
    settings = _load(path)
    _run(_serve(settings))


@main.command()
@_config_option
def check(path: Path | None) -> None:
    """Validate the config file and say what it amounts to."""
    settings = _load(path)
    replicas = sum(len(pool.replicas) for pool in settings.pools.values())
    rules = sum(len(plan) for plan in settings.limits.plans.values())
    click.echo(
        f"{file.find(path)}: good. {len(settings.models)} models, {len(settings.pools)} pools with {replicas} "
        f"replicas, {len(settings.auth.issuers)} issuers, {len(settings.limits.plans)} plans with {rules} rules."
    )
    if settings.auth.development_key is not None:
        click.echo(
            "Warning: auth.development_key accepts tokens signed with a local file; not for production.", err=True
        )


@main.command()
def demo() -> None:
    """Serve two simulated engines on embedded defaults, and print a call to paste."""
    _run(run_demo(_until_told_to_stop))


@main.command()
@_config_option
@click.option("--tenant", required=True, help="Whose quota and bill.")
@click.option("--key", required=True, help="The credential's stable id.")
@click.option("--plan", help="The plan that the token claims.")
@click.option("--ttl", type=_Duration(), default="1h", show_default=True, help="How long the token is valid.")
def token(path: Path | None, tenant: str, key: str, plan: str | None, ttl: float) -> None:
    """Sign a development token with the config's development key, which is created if it does not exist."""
    settings = _load(path)
    if settings.auth.development_key is None:
        _fail(
            f"{file.find(path)}: auth.development_key: is not set; set it to a path such as development-key.pem",
            BAD_CONFIG,
        )
    try:
        signing = development.load_or_create(Path(settings.auth.development_key))
    except KeySetUnusable as error:
        _fail(str(error), FAILED)
    click.echo(development.sign(signing, tenant=tenant, key_id=key, plan=plan, ttl_s=ttl, now=SystemClock().now()))


@main.command()
@click.option("--model", required=True, help="The one model that it serves.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--tokens-per-second", type=click.FloatRange(min=0.001), help="Pace of each answer; default: no pause.")
def engine(model: str, host: str, port: int, tokens_per_second: float | None) -> None:
    """Run a simulated engine that speaks vLLM's wire format, for trials and load tests."""

    def say(url: str) -> None:
        click.echo(f"simulated engine for {model} on {url}", err=True)

    async def run() -> None:
        serving = asyncio.create_task(
            serve_engine(model=model, host=host, port=port, tokens_per_second=tokens_per_second, started=say)
        )
        stopping = asyncio.create_task(_until_told_to_stop())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.wait((serving,))
        elif error := serving.exception():
            raise error

    _run(run())


async def _serve(settings: Config) -> None:
    writer = LineWriter()
    logs.configure(settings.logging, writer)
    writer.start()
    try:
        door = Gateway(settings, writer)
        await door.start()
        _collect_less()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _log.warning, "SIGHUP: %s", _NO_RELOAD)
        await _until_told_to_stop()
        await door.stop()
    finally:
        writer.close()


def _collect_less() -> None:
    """Let the cycle collector look seldom, and never at what lives as long as the process.

    Calls leave hardly any cycles, but make objects enough to start it several times each: that took 15 % of their CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BEFORE_COLLECTING, 20, 20)


async def _until_told_to_stop() -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


def _load(path: Path | None) -> Config:
    try:
        return file.load(file.find(path))
    except file.BadConfig as error:
        _fail(str(error), BAD_CONFIG)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(work)
    except (CannotListen, KeySetUnusable) as error:
        _fail(str(error), FAILED)
    except OSError as error:
        _fail(f"cannot start: {error}", FAILED)


def _loop_factory() -> Any:
    """Return uvloop's factory where it is installed; asyncio's own loop does the same, for about twice the CPU."""
    try:
        import uvloop  # noqa: PLC0415 optional
    except ImportError:
        return None
    return uvloop.new_event_loop


def _fail(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(code)
