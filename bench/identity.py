"""The measuring of identity: whether an identity provider that hangs delays those whose tokens are known.

A gateway fetches its key set anew each second, from a provider that answers in one slice of time and hangs in the next.
In both, a stranger comes each second with a key that nobody has, so that the gateway would ask for that too.
"""

import asyncio
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from bench.calls import Call, of_stranger
from bench.load import connect, percentile
from bench.paced import PacedLoad
from bench.proxies import Proxy, fetching
from bench.report import median
from bench.rounds import Figures
from bench.stand import Stand

# What the provider does in a slice.
KINDS = ("answers", "hangs")
_STRANGERS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Slices:
    """How long the provider answers, or hangs, at a time; and calls a second meanwhile."""

    seconds: float
    rate: int


FULL = Slices(seconds=10, rate=200)
QUICK = Slices(seconds=1, rate=100)


class Provider:
    """Publishes a key set on a port of this machine, in threads of its own; while it hangs it takes requests only."""

    def __init__(self) -> None:
        self.asked = 0
        self._document = b""
        self._answering = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                provider._answering.wait()
                with suppress(ConnectionError):  # whoever asked waits no longer
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(provider._document)))
                    self.end_headers()
                    self.wfile.write(provider._document)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def publish(self, document: str) -> str:
        """Have this key set from now on, and return its URL."""
        self._document = document.encode()
        return f"http://127.0.0.1:{self._server.server_address[1]}/jwks"

    def hang(self) -> None:
        self._answering.clear()

    def answer(self) -> None:
        """Answer again, those included that wait."""
        self._answering.set()

    def __enter__(self) -> Self:
        self.answer()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer()
        self._server.shutdown()
        self._server.server_close()


def gateway(provider: Provider) -> Proxy:
    """Return the gateway that is measured."""
    return fetching("gateway", provider.publish, refresh="1s", cooldown="1s")


def compared(figures: Mapping[str, Figures]) -> str:
    """Return in a sentence what it costs those whose tokens are known that the provider hangs."""
    answers, hangs = (median(figures[kind], "delay99") for kind in KINDS)
    return (
        f"A call with a known token: p99 {hangs:.0f} µs while the provider hangs, {answers:.0f} µs while it answers "
        f"({hangs / answers:.2f})"
    )


class Identity:
    """Rounds of two slices, one of each kind; `figures` has a row for each, taken over all calls of all its slices."""

    def __init__(self, slices: Slices, provider: Provider) -> None:
        self._slices = slices
        self._provider = provider
        self._figures = {kind: Figures() for kind in KINDS}
        self._took_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._lasted_s = dict.fromkeys(KINDS, 0.0)
        self._strangers = 0

    @property
    def figures(self) -> Mapping[str, Figures]:
        for kind, figures in self._figures.items():
            took = self._took_us[kind]
            figures.values = {
                "rate": [len(took) / self._lasted_s[kind]],
                "delay50": [percentile(took, 50)],
                "delay99": [percentile(took, 99)],
            }
        return self._figures

    async def round(self, number: int, stand: Stand) -> None:
        """Measure both kinds, the other one first in every second round."""
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            asked = self._provider.asked
            if kind == "hangs":
                self._provider.hang()
            try:
                await self._measure(kind, stand.proxies[0].port, stand.calls.small, seed=number)
            finally:
                self._provider.answer()
            asked = self._provider.asked - asked
            print(f"round {number + 1}, the provider {kind}: asked for keys {asked} times", file=sys.stderr)

    async def _measure(self, kind: str, port: int, call: Call, *, seed: int) -> None:
        async with PacedLoad([port], rate=self._slices.rate, seed=seed) as load:
            await load.run(call, seconds=0.3)  # connections and the token are known from here on
            load.took_us.clear()
            coming = asyncio.create_task(self._strangers_come(port))
            self._figures[kind].count(await load.run(call, seconds=self._slices.seconds))
            coming.cancel()
            await asyncio.wait([coming])
            self._took_us[kind] += load.took_us
            self._lasted_s[kind] += load.lasted_s

    async def _strangers_come(self, port: int) -> None:
        """Send one each while; they leave when the slice ends, answered or not."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._strangers += 1
                group.create_task(_ask(port, of_stranger(self._strangers)))
                await asyncio.sleep(_STRANGERS_EVERY_S)


async def _ask(port: int, request: bytes) -> None:
    connection = await connect(port)
    try:
        await connection.ask(Call(request, length=0, parts=0))
    finally:
        connection.close()
