"""The engine's HTTP face: requests in, generation at a set pace, vLLM's answers out; a client that leaves ends it."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from aiohttp import web

from gateway.clock import Clock, SystemClock
from gateway.engine import counters, wire
from gateway.engine.account import Account
from gateway.engine.generation import Generation
from gateway.engine.job import Endpoint, Job, parse
from gateway.engine.refusals import EngineRefusal, wrong_media_type

MAX_MODEL_LEN = 32768
# vLLM's server closes connections that were idle this long: whoever pools them must cope.
KEEP_ALIVE_S = 5.0
# Closing cuts what still runs, as a killed engine does; to aiohttp, 0 would mean to wait without end.
SHUTDOWN_S = 0.01

ENDPOINTS: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
PAGES = ("/v1/models", "/health", "/version", "/metrics")
JSON = "application/json"


class SimulatedEngine:
    """One engine that serves one model. `tokens_per_second` is the pace of each choice; None is as fast as possible.

    `counters` holds what was generated, for comparison with what others say was; `account` is told it step by step.
    """

    def __init__(
        self,
        model: str,
        *,
        tokens_per_second: float | None = None,
        max_model_len: int = MAX_MODEL_LEN,
        api_key: str | None = None,
        account: Account | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.model = model
        self.counters = counters.Counters()
        self._step_s = 1 / tokens_per_second if tokens_per_second else 0.0
        self._max_model_len = max_model_len
        self._api_key = api_key
        self._account = account
        self._clock = clock or SystemClock()
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and return the port. Raises `OSError` when the address cannot be had."""
        # handler_cancellation: a client that leaves ends its generation at once, not at the next write.
        server = web.Server(self._answer, handler_cancellation=True, keepalive_timeout=KEEP_ALIVE_S, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening and cut the answers that are under way."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._refuses_key(request):
            return _response(b'{"error":"Unauthorized"}', status=401)
        endpoint = ENDPOINTS.get(request.path)
        if endpoint is None:
            return self._page(request)
        if request.method != "POST":
            return _response(b'{"detail":"Method Not Allowed"}', status=405, allow="POST")
        try:
            job = await self._job(request, endpoint)
        except EngineRefusal as refusal:
            return _response(wire.error(refusal), status=refusal.status)
        return await self._generate(request, job)

    def _refuses_key(self, request: web.BaseRequest) -> bool:
        if self._api_key is None or not request.path.startswith("/v1"):
            return False
        given = request.headers.get("Authorization", "")
        return not secrets.compare_digest(given.encode(errors="replace"), f"Bearer {self._api_key}".encode())

    def _page(self, request: web.BaseRequest) -> web.Response:
        if request.path not in PAGES:
            return _response(b'{"detail":"Not Found"}', status=404)
        if request.method != "GET":
            return _response(b'{"detail":"Method Not Allowed"}', status=405, allow="GET")
        if request.path == "/health":
            return _response(b"", content_type="")
        if request.path == "/metrics":
            return _response(self.counters.exposition(self.model), content_type=counters.CONTENT_TYPE)
        if request.path == "/version":
            return _response(wire.version())
        created = int(self._clock.now())
        return _response(wire.models(self.model, created=created, max_model_len=self._max_model_len))

    async def _job(self, request: web.BaseRequest, endpoint: Endpoint) -> Job:
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
            raise wrong_media_type()
        # Not request.read(), which stops at aiohttp's 1 MiB: pictures are larger, and vLLM has no bound.
        body = await request.content.read()
        return parse(body, endpoint=endpoint, model=self.model, max_model_len=self._max_model_len)

    async def _generate(self, request: web.BaseRequest, job: Job) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        answer = wire.Answer(job, request_id, int(self._clock.now()), self.model)
        generation = Generation(job)
        with self.counters.request(generation.prompt_tokens), self._accounted(answer, generation) as steps:
            produce = self._stream if job.stream else self._whole
            response = await produce(request, answer, generation, *steps)
        self.counters.finished.update(str(choice.finish_reason) for choice in generation.choices)
        return response

    @contextmanager
    def _accounted(
        self, answer: wire.Answer, generation: Generation
    ) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
        """Yield what is to be called at each token that is generated, and when all are, before that is told."""
        account = self._account
        if account is None:
            yield self.counters.generated, lambda: None
            return
        whole = False
        number = account.began(answer.request_id, prompt_tokens=generation.prompt_tokens, seed=answer.job.seed)

        def generated() -> None:
            self.counters.generated()
            account.token(number)

        def all_generated() -> None:
            nonlocal whole
            whole = True
            account.ended(number)

        try:
            yield generated, all_generated
        except BaseException:
            if not whole:
                account.cut(number)
            raise

    async def _whole(
        self,
        _: web.BaseRequest,
        answer: wire.Answer,
        generation: Generation,
        generated: Callable[[], None],
        all_generated: Callable[[], None],
    ) -> web.StreamResponse:
        pace = _Pace(self._step_s)
        texts: list[list[str]] = [[] for _ in generation.choices]
        while generation.running:
            await pace.turn()
            for choice, text in generation.step():
                generated()
                texts[choice.index].append(text)
        all_generated()
        return _response(answer.whole(generation, ["".join(tokens) for tokens in texts]))

    async def _stream(
        self,
        request: web.BaseRequest,
        answer: wire.Answer,
        generation: Generation,
        generated: Callable[[], None],
        all_generated: Callable[[], None],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers("text/event-stream; charset=utf-8"))
        await response.prepare(request)
        for event in answer.openings(generation):
            await response.write(event)
        pace = _Pace(self._step_s)
        while generation.running:
            await pace.turn()
            for choice, text in generation.step():
                generated()
                await response.write(answer.token(choice, text))
        all_generated()
        for event in answer.endings(generation):
            await response.write(event)
        return response


class _Pace:
    """Even turns: each waits until its time since the start, so that delays do not add up."""

    __slots__ = ("_loop", "_next", "_step_s")

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time()

    async def turn(self) -> None:
        self._next += self._step_s
        # Without a pace it still yields: other streams go on, and a client that left is noticed.
        await asyncio.sleep(max(self._next - self._loop.time(), 0) if self._step_s else 0)


def _headers(content_type: str) -> dict[str, str]:
    described = {"content-type": content_type} if content_type else {}
    return {"date": formatdate(usegmt=True), "server": "uvicorn", **described, "vary": "Origin"}


def _response(body: bytes, *, status: int = 200, content_type: str = JSON, allow: str = "") -> web.Response:
    headers = _headers(content_type) | ({"allow": allow} if allow else {})
    return web.Response(body=body, status=status, headers=headers)


async def serve_engine(
    *,
    model: str,
    host: str,
    port: int,
    tokens_per_second: float | None = None,
    api_key: str | None = None,
    account: Path | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a simulated engine until cancelled; `started` is told its base URL.

    Raises:
        OSError: as `start` and `Account` do.
    """
    steps = None if account is None else Account(account, SystemClock())
    engine = SimulatedEngine(model, tokens_per_second=tokens_per_second, api_key=api_key, account=steps)
    try:
        bound = await engine.start(host, port)
        if started is not None:
            started(f"http://{host}:{bound}")
        await asyncio.Event().wait()
    finally:
        await engine.close()
