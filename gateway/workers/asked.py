"""One question to all workers of a gateway, and their answers by worker."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from gateway.workers.crew import Crew
from gateway.workers.worker import Reply, WorkerSilent

# What is waited for a worker: some ten times what a large page takes.
_WITHIN_S = 2.0
_OK = 200


@dataclass(slots=True)
class Asked:
    """The JSON of those that answered well, by their number; those that did not at all; and a refusal of one."""

    pages: dict[int, dict[str, Any]] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)
    refusal: Reply | None = None


async def ask_all(crew: Crew, path: str) -> Asked:
    """Return what they answer to a GET of `path`: the first, whose word goes before others', is who takes changes."""
    workers = crew.in_turn
    replies = await asyncio.gather(
        *[one.ask("GET", path, within_s=_WITHIN_S) for one in workers], return_exceptions=True
    )
    asked = Asked()
    for worker, reply in zip(workers, replies, strict=True):
        if isinstance(reply, WorkerSilent):
            asked.silent.append(worker.number)
        elif isinstance(reply, BaseException):
            raise reply
        elif reply.status == _OK:
            asked.pages[worker.number] = json.loads(reply.body)
        else:
            asked.refusal = reply
    return asked
