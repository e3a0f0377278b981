"""The endpoint where an issuer answers about one bearer token: a request out, its status and JSON members in.

At most `concurrency` requests run at once, a quarter of them renewals: strangers' tokens cannot take the place of those
that are known, nor the other way round. Never judges what an answer means.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote_plus

import aiohttp

from gateway import config
from gateway.errors import IdentityUnavailable
from gateway.identity.authorities import Authorities
from gateway.identity.fetch import Fetched, Unreachable, fetch, shown

# A token of 16 KiB and its envelope; claims of a user with many groups.
MAX_ANSWER_BYTES = 64 * 2**10
# All the clients of a gateway come at once after its start: at 20 ms a question and 12 at once the last of these waits
# 2 s. Each holds its token: 16 MiB at most.
MAX_WAITING = 1024


class IssuerFailed(IdentityUnavailable):
    """The issuer gave no answer that says anything about the token. `why` can be logged."""

    def __init__(self, why: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(
            "The identity service cannot be asked about the token. Try again.", retry_after_s=retry_after_s
        )
        self.why = why


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: a status below 500 other than 429, and the members of the JSON object, if it was one."""

    status: int
    members: dict[str, Any]

    @property
    def error(self) -> str:
        """The word of an OAuth error (RFC 6749 section 5.2); empty where there is none."""
        error = self.members.get("error")
        return error if isinstance(error, str) else ""


class Endpoint:
    """One issuer's endpoint, asked with the client's credentials or as the bearer."""

    def __init__(self, remote: config.Remote, session: aiohttp.ClientSession, *, authorities: Authorities) -> None:
        self._remote = remote
        self._session = session
        self._authorities = authorities
        renewals = max(1, remote.concurrency // 4)
        self._slots = asyncio.Semaphore(remote.concurrency - renewals)
        self._renewal_slots = asyncio.Semaphore(renewals)
        self._waiting = 0
        self._secret = None if remote.client_secret is None else remote.client_secret.get_secret_value()

    @property
    def url(self) -> str:
        """Where it is, for the log."""
        return shown(self._remote.url)

    async def post(self, form: dict[str, str], *, renewal: bool) -> Answer:
        """Send a form, with the client's credentials where there are some.

        Raises:
            IssuerFailed: no answer within `timeout`, 429, 5xx, a redirect, or no room to wait.
        """
        authorization = None
        if self._remote.client_id is not None:
            if self._secret is not None and self._remote.client_auth == "basic":
                authorization = _basic(self._remote.client_id, self._secret)
            else:
                form = {**form, "client_id": self._remote.client_id}
                form |= {} if self._secret is None else {"client_secret": self._secret}
        return await self._ask(form, authorization, renewal=renewal)

    async def get_as(self, token: str, *, renewal: bool) -> Answer:
        """Ask as the bearer of `token` itself.

        Raises:
            IssuerFailed: as `post`.
        """
        return await self._ask(None, f"Bearer {token}", renewal=renewal)

    async def _ask(self, form: dict[str, str] | None, authorization: str | None, *, renewal: bool) -> Answer:
        try:
            if renewal:  # nobody waits for it: its time begins with its turn
                async with self._renewal_slots, asyncio.timeout(self._remote.timeout):
                    return await self._fetch(form, authorization)
            async with asyncio.timeout(self._remote.timeout), self._slot():
                return await self._fetch(form, authorization)
        except Unreachable as error:
            raise IssuerFailed(str(error)) from error
        except TimeoutError as error:
            raise IssuerFailed(f"{self.url}: no answer within {self._remote.timeout:g} s") from error

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise IssuerFailed(f"{self.url}: {MAX_WAITING} calls wait to ask already")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _fetch(self, form: dict[str, str] | None, authorization: str | None) -> Answer:
        fetched = await fetch(
            self._session,
            self._remote.url,
            max_bytes=MAX_ANSWER_BYTES,
            method="GET" if form is None else "POST",
            form=form,
            authorization=authorization,
            tls=self._authorities.context(),
        )
        return self._answer(fetched)

    def _answer(self, fetched: Fetched) -> Answer:
        status = fetched.status
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = fetched.headers.get("Retry-After", "").strip()
            wait_s = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 5 else 1.0  # noqa: PLR2004 an hour
            raise IssuerFailed(f"{self.url} answered {status}", retry_after_s=wait_s)
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise IssuerFailed(f"{self.url} answered {status}; redirects are not followed")
        try:
            members = json.loads(fetched.body)
        except (ValueError, RecursionError):
            members = None
        return Answer(status, members if isinstance(members, dict) else {})


def _basic(client_id: str, secret: str) -> str:
    """Return HTTP Basic credentials, each form-encoded first (RFC 6749 section 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
