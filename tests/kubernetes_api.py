"""A Kubernetes API server of EndpointSlices for tests, on a real socket with real TLS: it says what a test scripts.

api.slices = {…}; await api.tell("MODIFIED", endpoint_slice(…))     to every watch that is open
api.list_with(status) / api.watch_with(status)                      instead of an answer, until None
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.certificates import certified
from tests.deadlines import DEADLINE_S

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, *, uid: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    """Return one endpoint; of its conditions those that are given."""
    target = {} if uid is None else {"targetRef": {"kind": "Pod", "uid": uid}}
    return {"addresses": [address], "conditions": {"ready": True, **conditions}, **target}


def endpoint_slice(
    name: str,
    *endpoints: Any,
    ports: Sequence[tuple[str, int]] = (("", 8000),),
    family: str = "IPv4",
    version: str = "1",
) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "inference", "resourceVersion": version},
        "addressType": family,
        "endpoints": [*endpoints],
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports],
    }


def listing(*items: Any, version: str = "1") -> dict[str, Any]:
    return {"kind": "EndpointSliceList", "metadata": {"resourceVersion": version}, "items": [*items]}


class KubernetesApi:
    """Serves `slices`. `asked` has the query of each list and watch; `tokens` are those that it accepts."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.slices: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, str]] = []
        self.tokens = {"first"}
        self.piece = 0  # bytes at once; 0: all
        self.instead: dict[str, web.Response] = {}
        self.silent = False
        self._version = 1
        self._watches: set[web.StreamResponse] = set()
        self._ends: set[asyncio.Event] = set()
        (directory / "token").write_text("first\n")
        (directory / "namespace").write_text("inference")

    @property
    def watches(self) -> int:
        return len(self._watches)

    def discovery(self, **more: Any) -> dict[str, Any]:
        """Return the section that finds what is served here."""
        entry = {"service": "vllm", "api": self.url, "service_account": str(self.directory), **more}
        return {"kubernetes": entry}

    async def tell(self, kind: str, item: dict[str, Any]) -> None:
        """Have a slice changed, and tell all who watch."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            self.slices.pop(item["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            self.slices[item["metadata"]["name"]] = item
        await self.say(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    async def say(self, data: bytes) -> None:
        """Send these bytes to all who watch."""
        for watch in [*self._watches]:
            size = self.piece or len(data)
            for start in range(0, len(data), size):
                await watch.write(data[start : start + size])

    async def watched(self) -> None:
        """Wait until somebody watches."""
        async with asyncio.timeout(DEADLINE_S):
            while not self._watches:
                await asyncio.sleep(0.005)

    def end_watches(self) -> None:
        for end in self._ends:
            end.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        kind = "watch" if query.get("watch") else "list"
        self.asked.append(query)
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return web.Response(status=401)
        assert request.match_info["namespace"] == "inference"
        if kind in self.instead:
            given = self.instead[kind]
            return web.Response(status=given.status, body=given.body)
        if self.silent:
            await asyncio.Event().wait()
        if kind == "list":
            return web.json_response(listing(*self.slices.values(), version=str(self._version)))
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response, end = web.StreamResponse(), asyncio.Event()
        await response.prepare(request)
        self._watches.add(response)
        self._ends.add(end)
        try:
            await end.wait()
        finally:
            self._watches.discard(response)
            self._ends.discard(end)
        return response


@asynccontextmanager
async def kubernetes_api(directory: Path) -> AsyncIterator[KubernetesApi]:
    """Serve in a directory that becomes a service account's."""
    tls, pem = certified(directory)
    (directory / "ca.crt").write_bytes(pem.read_bytes())
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    api: KubernetesApi | None = None

    async def answer(request: web.Request) -> web.StreamResponse:
        assert api is not None
        return await api.answer(request)

    app.router.add_get(PATH, answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    api = KubernetesApi(f"https://127.0.0.1:{runner.addresses[0][1]}", directory)
    try:
        yield api
    finally:
        api.end_watches()
        await runner.cleanup()
