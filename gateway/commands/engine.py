"""`gateway engine`: a simulated engine, until it is told to stop."""

import asyncio
from pathlib import Path

import click

from gateway.commands.running import run, until_told_to_stop
from gateway.engine.server import serve_engine


@click.command()
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

    async def running() -> None:
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
        stopping = asyncio.create_task(until_told_to_stop())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.wait((serving,))
        elif error := serving.exception():
            raise error

    run(running())
