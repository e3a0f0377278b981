"""The path of an inference request, top to bottom, and the only place where errors become responses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from gateway.admission.admission import Admission
from gateway.calls.call import Call
from gateway.calls.call import Endpoint as CallEndpoint
from gateway.calls.features import check_features
from gateway.calls.media_type import check_media_type
from gateway.calls.parse import parse
from gateway.calls.usage import Usage
from gateway.client.answer import Answer, Fields, lines
from gateway.client.deadline import deadline_of
from gateway.client.request import Request
from gateway.client.room import Room
from gateway.clock import Clock
from gateway.config import Requests
from gateway.errors import (
    CONTENT_TYPE,
    BadRequest,
    DeadlinePassed,
    Draining,
    InternalError,
    NoRoom,
    Refusal,
    Unauthorized,
)
from gateway.fallbacks import CANNOT_ANSWER, Fallbacks
from gateway.identity.authenticate import Authenticator
from gateway.identity.header import MAX_FIELD_BYTES
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from gateway.relay.attempts import Attempts
from gateway.relay.endings import refusal_event
from gateway.relay.upstream import Upstream
from gateway.routing.catalog import Catalog
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import Endpoint
from gateway.trail import Trail

_log = logging.getLogger(__name__)

# What is charged where the engine refuses the call as invalid, or the client gave it too little time: the request, so
# that nobody hammers engines for free. What no engine was asked for is charged nothing.
_NO_TOKENS = Usage(prompt=0, completion=0)
# How long calls that were cut at the drain's deadline may take to write their last event.
_LAST_WORDS_S = 1.0
_NO_DEADLINE = nullcontext()

Path = Callable[[Request, Answer, Trail], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Serving:
    """What calls go by that the config says: each by what there was when it came, to its end."""

    catalog: Catalog
    requests: Requests
    max_body: int


class Pipeline:
    """Everything a call passes through. One per process, joined in app.py; `drain` ends it.

    `serve_by` has the calls that come from then on go by another config.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        serving: Serving,
        *,
        admission: Admission,
        upstream: Upstream,
        metrics: Metrics,
        access_log: AccessLog,
        clock: Clock,
        new_id: Callable[[], str],
        body_budget: int,
    ) -> None:
        self.draining = False
        self.serving = serving
        self._authenticator = authenticator
        self._admission = admission
        self._fallbacks = Fallbacks(admission, metrics)
        self._upstream = upstream
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock
        self._new_id = new_id
        self._room = Room(body_budget)
        self._under_way: set[Trail] = set()
        self._cutting = False  # calls that were not admitted in time are told so before they are tried
        self._all_done = asyncio.Event()  # set by the last call to end while draining

    def serve_by(self, serving: Serving, *, access_log: AccessLog, body_budget: int) -> None:
        """Go by these from now on. Calls that are under way keep what they began with."""
        self.serving, self._access_log = serving, access_log
        self._room.resize(body_budget)

    async def infer(self, request: Request, answer: Answer, trail: Trail) -> None:
        """Answer an inference request; every stage needs what the one before it returned."""
        if self.draining:
            raise Draining("This gateway is restarting; send the call again.")
        serving = self.serving
        deadline = deadline_of(request, began_at=trail.began_at, clock=self._clock)
        with deadline or _NO_DEADLINE:
            principal = await self.authenticate(request, trail)
            call = trail.call = await self._read_call(request, answer, trail, serving, tenant=principal.tenant)
            model = trail.model = serving.catalog.route(call, principal)
            check_features(call, tool_choice=model.entry.tool_choice, content_parts=model.entry.content_parts)
            permit = await self._admission.admit(
                principal,
                call,
                model=model.name,
                pool=model.pool.name,
                default_output_tokens=model.entry.default_output_tokens,
                call_id=trail.inference_id,
            )
        attempts = trail.attempts = Attempts(
            self._upstream,
            call,
            model,
            clock=self._clock,
            observer=self._metrics,
            deadline_at=deadline.at if deadline else None,
            tenant=principal.tenant,
            priority=permit.applying.priority,
        )
        if self._cutting:
            attempts.cut()
        trail.leave = self._metrics.call_started(model.name)
        with permit:  # gives everything back unless it is settled
            try:
                fields = identifying(trail) + permit.fields
                ask = partial(attempts.run, request, answer, inference_id=trail.inference_id, fields=fields)
                failed = await _failed(ask)
                if failed is not None:
                    others = serving.catalog.elsewhere(model, call, principal)
                    try:
                        await self._fallbacks.answer(ask, others, call, trail=trail, permit=permit, failed=failed)
                    finally:
                        del failed  # with its traceback it would be a cycle, and hold the call
            except (BadRequest, DeadlinePassed):
                if attempts.asked:
                    permit.settle(_NO_TOKENS)
                raise
            except asyncio.CancelledError:
                trail.client_gone = True
                raise
            finally:
                trail.leave()
                trail.outcome = attempts.outcome(client_gone=trail.client_gone)
                if trail.outcome is not None:
                    permit.settle(trail.outcome.usage)
                    trail.model.estimate.learn(call.text_bytes, trail.outcome.usage)

    async def authenticate(self, request: Request, trail: Trail) -> Principal:
        """Return who is calling, before anything of the body is read."""
        authorization = request.fields.get(b"authorization")
        try:
            principal = self._authenticator.recall(authorization)
            if principal is None:
                principal = await self._authenticator.authenticate(authorization)
        except Unauthorized as refusal:
            self._metrics.auth_failure(reason_of(refusal))
            raise
        trail.principal = principal
        return principal

    async def serve(self, request: Request, endpoint: Endpoint, path: Path) -> Answer:
        """Answer one request by `path`. Whatever happens on it is answered, counted and logged here."""
        trail = Trail(self._new_id(), endpoint, self._clock)
        answer = Answer(request, now=trail.started)
        self._under_way.add(trail)
        try:
            try:
                await path(request, answer, trail)
            except Refusal as refusal:
                self._refuse(answer, trail, refusal)
            except Exception:  # noqa: BLE001 the one place: whatever it was, the client gets a 500 and the log the rest
                _log.exception("a call met a defect", extra={"inference_id": trail.inference_id})
                message = "An internal error happened; quote the INFERENCE-ID to support."
                self._refuse(answer, trail, InternalError(message))
            if request.connection.writing_paused:  # who pipelines must read, or would fill our memory
                trail.untaken = True
                await request.connection.until_writable()
                trail.untaken = False
        finally:
            request.leave_room()
            self._finish(answer, trail)
        return answer

    def malformed(self, request: Request) -> Answer:
        """Answer what is not HTTP, or not in time: the connection ends with the answer."""
        trail = Trail(self._new_id(), "other", self._clock)
        answer = Answer(request, now=trail.started)
        message = (
            "The request is not well-formed HTTP/1.1, its head did not arrive in time, "
            f"or a field of it exceeds {MAX_FIELD_BYTES} bytes."
        )
        self._refuse(answer, trail, BadRequest(message))
        self._finish(answer, trail)
        return answer

    async def drain(self, timeout_s: float, hurry: asyncio.Event) -> None:
        """Refuse new calls, wait for those under way, and end visibly what is left after `timeout_s` or at `hurry`."""
        self.draining = True
        if not self._under_way:
            return
        waiting = [asyncio.create_task(one.wait()) for one in (self._all_done, hurry)]
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        if not self._all_done.is_set():
            why = "told to stop again" if hurry.is_set() else f"{timeout_s:g} s have passed"
            _log.warning("%d calls are still under way (%s); ending them", len(self._under_way), why)
            await self._cut_short()

    async def _cut_short(self) -> None:
        self._cutting = True
        for trail in self._under_way:
            if trail.attempts is not None:
                trail.attempts.cut()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._all_done.wait()

    async def _read_call(
        self, request: Request, answer: Answer, trail: Trail, serving: Serving, *, tenant: str
    ) -> Call:
        check_media_type(request.text(b"content-type"), request.text(b"content-encoding"))
        body = request.body_at_hand(limit=serving.max_body)
        if body is None:
            began = self._clock.monotonic()
            try:
                timeout_s = serving.requests.body_timeout
                body = await request.body(limit=serving.max_body, timeout_s=timeout_s, room=self._room)
            except (BadRequest, NoRoom):
                answer.close_after()  # so that the client stops sending the rest
                raise
            trail.body_wait_s = self._clock.monotonic() - began
        endpoint: CallEndpoint = "chat" if trail.endpoint == "chat" else "completions"
        return parse(
            endpoint,
            body,
            requests=serving.requests,
            estimates=serving.catalog.estimates,
            by_prefix=serving.catalog.by_prefix,
            tenant=tenant,
        )

    def _refuse(self, answer: Answer, trail: Trail, refusal: Refusal) -> None:
        """Answer with an error; where an answer is under way already, cut it instead of writing a second head."""
        trail.refusal = refusal
        if answer.sent_status:
            if trail.attempts is not None and trail.attempts.only_comments:
                answer.send(refusal_event(refusal))
                answer.finish()
            else:
                trail.cut = True
                answer.abort()
            return
        if self.draining:
            answer.close_after()
        fields = f"Content-Type: {CONTENT_TYPE}\r\n{identifying(trail)}{lines(refusal.headers)}"
        answer.whole(refusal.status, fields, refusal.body())

    def _finish(self, answer: Answer, trail: Trail) -> None:
        self._under_way.discard(trail)
        if self.draining and not self._under_way:
            self._all_done.set()
        trail.status = answer.sent_status or trail.status
        trail.stalled = answer.connection.stalled
        record = trail.record()
        self._metrics.record(record)
        self._access_log.record(record)
        trail.refusal = None  # its traceback holds the trail: in that cycle the body would wait for the collector


async def _failed(ask: Callable[[], Awaitable[None]]) -> Refusal | None:
    """Return why the replicas that `ask` tried cannot answer; None: one has.

    Turning it to others waits, which compiled code must not while it handles this (docs/performance.md#compiled).
    """
    try:
        await ask()
    except CANNOT_ANSWER as refusal:
        return refusal
    return None


def identifying(trail: Trail) -> Fields:
    """Return the fields that every answer carries: the call's id, under the seeds' name and the one SDKs read."""
    return f"INFERENCE-ID: {trail.inference_id}\r\nx-request-id: {trail.inference_id}\r\n"
