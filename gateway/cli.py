"""The `gateway` command. Errors go to stderr and say what, where and what to do; exit codes are 0, 1 and 2."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

import gateway
from gateway.admission.journal.journal import JournalUnusable
from gateway.admission.ledger import rows
from gateway.admission.ledger.account import COUNTERS
from gateway.admission.ledger.query import of_operator
from gateway.admission.redis.ledger import RedisLedger
from gateway.admission.store import StoreUnavailable
from gateway.app import Gateway
from gateway.client.port import CannotListen
from gateway.clock import SystemClock
from gateway.command import BAD_CONFIG, FAILED, Duration, config_option, fail, load, read
from gateway.config import file
from gateway.config.unmatched import unmatched
from gateway.demo import run_demo
from gateway.engine.server import serve_engine
from gateway.errors import InvalidValue
from gateway.identity import development
from gateway.identity.keys import KeySetUnusable
from gateway.key import key
from gateway.limit import limit
from gateway.replica import replica
from gateway.revoke import revoke
from gateway.telemetry import logs
from gateway.telemetry.writer import LineWriter
from gateway.workers.part import Part
from gateway.workers.supervisor import supervise

_Result = TypeVar("_Result")

# Some hundred calls' worth; Python's own 700 is less than two.
_NEW_OBJECTS_BEFORE_COLLECTING = 20_000

_FORMATS = {"table": rows.as_table, "csv": rows.as_csv, "json": rows.as_json_lines}


@click.group()
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """The front door of LLM inference pools."""


main.add_command(key)
main.add_command(limit)
main.add_command(replica)
main.add_command(revoke)


@main.command()
@config_option
@click.option("--workers", metavar="N", help="Processes that share the port, or auto. Default: the config's.")
@click.option("--worker", "part", hidden=True)
def serve(path: Path | None, workers: str | None, part: str | None) -> None:
    """Serve calls until SIGTERM or SIGINT, then drain. SIGHUP has the config read again."""
    loaded = read(path, workers=workers)
    if part is not None or loaded.settings.server.workers == 1:
        _run(_serve(loaded, None if part is None else Part(part)))
    elif code := _run(supervise(loaded.settings, [sys.executable, *sys.orig_argv[1:]], SystemClock()), on_asyncio=True):
        sys.exit(code)


@main.command()
@config_option
def check(path: Path | None) -> None:
    """Validate the config file and say what it amounts to."""
    settings = load(path)
    replicas = sum(len(pool.replicas) for pool in settings.pools.values())
    finding = sum(pool.discovery is not None for pool in settings.pools.values())
    rules = sum(len(plan) for plan in settings.limits.plans.values())
    found = f" ({finding} {'pool finds' if finding == 1 else 'pools find'} more)" if finding else ""
    click.echo(
        f"{file.find(path)}: good. {_count(len(settings.models), 'model')}, {_count(len(settings.pools), 'pool')} "
        f"with {_count(replicas, 'replica')}{found}, {_count(len(settings.auth.issuers), 'issuer')}, "
        f"{_count(len(settings.auth.all_api_keys), 'API key')}, {_count(len(settings.limits.plans), 'plan')} "
        f"with {_count(rules, 'rule')}."
    )
    if settings.auth.development_key is not None:
        click.echo(
            "Warning: auth.development_key accepts tokens signed with a local file; not for production.", err=True
        )
    for where in settings.auth.in_the_clear():
        click.echo(f"Warning: {where} is plain http: who is on the way can read tokens or replace keys.", err=True)
    for where in settings.auth.expired(SystemClock().now()):
        click.echo(f"Warning: {where} has expired and is refused; remove it, or give it another end.", err=True)
    for where in unmatched(settings):
        click.echo(f"Warning: {where} matches no model; names are those under models, not aliases.", err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@main.command()
def demo() -> None:
    """Serve two simulated engines on embedded defaults, and print a call to paste."""
    _run(run_demo(_until_told_to_stop))


@main.command()
@config_option
@click.option("--tenant", required=True, help="Whose quota and bill.")
@click.option("--key", required=True, help="The credential's stable id.")
@click.option("--plan", help="The plan that the token claims.")
@click.option("--ttl", type=Duration(), default="1h", show_default=True, help="How long the token is valid.")
def token(path: Path | None, tenant: str, key: str, plan: str | None, ttl: float) -> None:
    """Sign a development token with the config's development key, which is created if it does not exist."""
    settings = load(path)
    if settings.auth.development_key is None:
        fail(
            f"{file.find(path)}: auth.development_key: is not set; set it to a path such as development-key.pem",
            BAD_CONFIG,
        )
    try:
        signing = development.load_or_create(Path(settings.auth.development_key))
    except KeySetUnusable as error:
        fail(str(error), FAILED)
    click.echo(development.sign(signing, tenant=tenant, key_id=key, plan=plan, ttl_s=ttl, now=SystemClock().now()))


@main.command()
@click.option("--model", required=True, help="The one model that it serves.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--tokens-per-second", type=click.FloatRange(min=0.001), help="Pace of each answer; default: no pause.")
@click.option(
    "--account", type=click.Path(path_type=Path), help="Append to this file what is generated for which request."
)
def engine(model: str, host: str, port: int, tokens_per_second: float | None, account: Path | None) -> None:
    """Run a simulated engine that speaks vLLM's wire format, for trials and load tests."""

    def say(url: str) -> None:
        click.echo(f"simulated engine for {model} on {url}", err=True)

    async def run() -> None:
        serving = asyncio.create_task(
            serve_engine(
                model=model,
                host=host,
                port=port,
                tokens_per_second=tokens_per_second,
                account=account,
                started=say,
            )
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


@main.command()
@config_option
@click.option("--tenant", help="Only this one. Default: all.")
@click.option("--since", help="The first day (UTC), such as 2026-11-01. Default: the first of the month.")
@click.option("--until", help="The last day. Default: the month's last.")
@click.option("--group-by", help="Any of day, tenant, key, model, with commas between. Default: day,tenant.")
@click.option("--format", "form", type=click.Choice(list(_FORMATS)), default="table", show_default=True)
def usage(path: Path | None, form: str, **asked: str | None) -> None:
    """Show what tenants used, from the ledger in the config's limits.store."""
    settings = load(path)
    if settings.limits.store == "memory":
        fail(
            f"{file.find(path)}: limits.store: the ledger is in the gateway's own memory; ask its /admin/usage instead",
            BAD_CONFIG,
        )
    today = datetime.fromtimestamp(SystemClock().now(), UTC).date()
    try:
        query = of_operator([(name, text) for name, text in asked.items() if text is not None], today=today)
        postings = RedisLedger(settings.limits.store).postings(query.tenant, query.since, query.until)
        groups = asyncio.run(rows.add_up(postings, query.group_by))
    except InvalidValue as error:
        fail(f"--{str(error.param).replace('_', '-')}: {error.message}", BAD_CONFIG)
    except StoreUnavailable as error:
        fail(f"{file.find(path)}: limits.store: the ledger cannot be read: {error.__cause__}", FAILED)
    text = _FORMATS[form](rows.rows(groups, query.group_by), (*query.group_by, *COUNTERS))
    click.echo(text.encode("utf-8", "backslashreplace"), nl=False)


async def _serve(loaded: file.Loaded, part: Part | None) -> None:
    told = asyncio.Event()
    _when_told_to_stop(told.set)
    writer = LineWriter() if part is None else LineWriter(part.write)
    given = None if part is None else part.given
    logs.configure(loaded.settings.logging, writer, worker=None if given is None else given.worker)
    writer.start()
    try:
        door = Gateway(loaded, writer, SystemClock(), given)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, door.reload)
        if part is not None:
            part.follow(told.set)
        if not await _started(door, told):
            return
        _collect_less()
        if part is not None:
            part.started()
        await told.wait()
        if part is not None:
            part.leaving(door.stops_within_s)
        _when_told_to_stop(door.hurry)
        await door.stop()
        if part is not None:
            part.hand_in(door.figures())
    finally:
        writer.close()


async def _started(door: Gateway, told: asyncio.Event) -> bool:
    """Start the gateway; False where it is told to stop before it has, and nothing of it is left."""
    starting, stopping = asyncio.create_task(door.start()), asyncio.create_task(told.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.wait((starting,))
    return False


def _collect_less() -> None:
    """Let the cycle collector look seldom, and never at what lives as long as the process.

    Calls leave hardly any cycles, but make objects enough to start it several times each: that took 15 % of their CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BEFORE_COLLECTING, 20, 20)


async def _until_told_to_stop() -> None:
    told = asyncio.Event()
    _when_told_to_stop(told.set)
    await told.wait()


def _when_told_to_stop(act: Callable[[], object]) -> None:
    """Have SIGTERM and SIGINT do this from now on, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, act)


def _run(work: Coroutine[Any, Any, _Result], *, on_asyncio: bool = False) -> _Result:
    try:
        with asyncio.Runner(loop_factory=None if on_asyncio else _loop_factory()) as runner:
            return runner.run(work)
    except (CannotListen, KeySetUnusable) as error:
        fail(str(error), FAILED)
    except JournalUnusable as error:
        fail(str(error), BAD_CONFIG)
    except OSError as error:
        fail(f"cannot start: {error}", FAILED)


def _loop_factory() -> Any:
    """Return uvloop's factory where it is installed; asyncio's own loop does the same, for about twice the CPU."""
    try:
        import uvloop  # noqa: PLC0415 optional
    except ImportError:
        return None
    return uvloop.new_event_loop
