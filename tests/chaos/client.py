"""A client: sends one call, and remembers what it saw of the answer. It may hang up on its own."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from gateway.clock import SystemClock
from tests.chaos.calls import Planned

_CLOCK = SystemClock()

# whole: an answer that says that it is complete. refused: an error instead of one. told: a stream that ends with an
# error event. cut: the connection broke. silent: a stream that ended well as HTTP, but said neither. left: the client
# hung up. unreachable: nobody was there.
Ending = Literal["whole", "refused", "told", "cut", "silent", "left", "unreachable"]


@dataclass
class Seen:
    """What came of one call. `texts` is what was said so far, choice by choice; `place` which gateway was asked.

    It was under way from `sent_us` to `over_us`, in microseconds since the epoch; `model` is who answered.
    """

    call: Planned
    place: int
    life: int
    ending: Ending = "unreachable"
    status: int | None = None
    inference_id: str | None = None
    model: str | None = None
    sent_us: int = 0
    over_us: int = 0
    code: str | None = None
    texts: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None


class Client:
    """Sends calls over connections that are kept."""

    def __init__(self, session: aiohttp.ClientSession, tokens: dict[tuple[str, str], str]) -> None:
        self._session = session
        self._tokens = tokens

    async def send(self, seen: Seen, url: str) -> None:
        """Send `seen.call` to the gateway at `url`, and note in `seen` what comes."""
        call = seen.call
        token = "not a token" if call.wrong == "token" else self._tokens[call.tenant, call.key]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if call.deadline_ms is not None:
            headers["x-request-timeout-ms"] = str(call.deadline_ms)
        seen.sent_us = round(_CLOCK.now() * 1_000_000)
        try:
            async with asyncio.timeout(call.leaves_s):
                async with self._session.post(url + call.path, data=call.body, headers=headers) as response:
                    seen.ending = "cut"
                    await self._read(seen, response)
        except TimeoutError:
            seen.ending = "left"
        except aiohttp.ClientConnectorError:
            seen.ending = "unreachable"
        except (aiohttp.ClientError, ConnectionError):
            seen.ending = "cut"
        finally:
            seen.over_us = round(_CLOCK.now() * 1_000_000)

    async def _read(self, seen: Seen, response: aiohttp.ClientResponse) -> None:
        seen.status = response.status
        seen.inference_id = response.headers.get("INFERENCE-ID")
        seen.model = response.headers.get("x-gateway-model")
        if response.status != 200:
            seen.code = json.loads(await response.read())["error"]["code"]
            seen.ending = "refused"
        elif not seen.call.stream:
            answer = json.loads(await response.read())
            seen.usage = answer["usage"]
            for choice in answer["choices"]:
                seen.texts[choice["index"]] = choice["message"]["content"] if "message" in choice else choice["text"]
            seen.ending = "whole"
        else:
            await self._read_stream(seen, response)

    async def _read_stream(self, seen: Seen, response: aiohttp.ClientResponse) -> None:
        pending, last = b"", ""
        async for data in response.content.iter_any():
            *events, pending = (pending + data).split(b"\n\n")
            for event in events:
                last = _note(seen, event.removeprefix(b"data: ")) or last
        seen.ending = {"done": "whole", "error": "told"}.get(last, "silent")  # type: ignore[assignment] # of those


def _note(seen: Seen, data: bytes) -> str:
    """Note an event; return `done` or `error` where it is an end."""
    if data == b"[DONE]":
        return "done"
    try:
        event = json.loads(data)
    except ValueError:
        return ""  # half an event, which the gateway closed
    if "error" in event:
        seen.code = event["error"]["code"]
        return "error"
    for choice in event["choices"]:
        text = choice["text"] if "text" in choice else choice["delta"].get("content")
        seen.texts[choice["index"]] = seen.texts.get(choice["index"], "") + (text or "")
    seen.usage = event.get("usage") or seen.usage
    return ""
