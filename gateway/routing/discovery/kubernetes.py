"""Replicas that are pods of a Kubernetes Service: its EndpointSlices are listed once and watched from then on."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import aiohttp

from gateway import background
from gateway.config import KubernetesEntry
from gateway.routing.discovery.account import Account
from gateway.routing.discovery.lines import Lines
from gateway.routing.discovery.slices import GONE, Expired, NotSlices, Slices
from gateway.routing.discovery.source import Away, Take

# A watch is begun anew after so long: by then a connection that died unnoticed is found out, and the token read anew.
WATCH_S = 60
# What the server may be late in ending it, and how long a list may take.
GRACE_S = 10.0
CONNECT_S = 5.0
# 10,000 endpoints take 4 MiB; and one slice, which has 100 by default and 1,000 at most, a tenth of that.
MAX_LIST_BYTES = 2**24
MAX_EVENT_BYTES = 2**21


class KubernetesSource:
    """Follows the slices that the entry asks for, by the pod's own service account."""

    longest_pause_s = 30.0

    def __init__(
        self,
        entry: KubernetesEntry,
        session: aiohttp.ClientSession,
        chance: random.Random,
        *,
        watch_s: float = WATCH_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._entry = entry
        self._session = session
        self._chance = chance
        self._watch_s = watch_s
        self._grace_s = grace_s
        self._account = Account(entry.service_account)
        self._labels = entry.selector or f"kubernetes.io/service-name={entry.service}"

    async def follow(self, take: Take) -> None:
        """Tell which pods there are, at each word of the server.

        Raises:
            Away: the server cannot be asked, refuses, is silent for too long, or says what cannot be gone by.
        """
        slices = Slices(self._entry)
        try:
            while True:
                await self._list(slices)
                take(slices.found())
                await self._watch_until_expired(slices, take)
        except (NotSlices, ValueError) as error:
            raise Away(f"{self._entry.api}: {error}") from error
        except TimeoutError as error:
            raise Away(f"{self._entry.api} does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise Away(f"{self._entry.api} cannot be asked: {why}") from error

    async def _list(self, slices: Slices) -> None:
        async with asyncio.timeout(self._grace_s), self._get({}) as response:
            _require_good(response)
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_LIST_BYTES:
                    raise Away(f"{self._entry.api}: a list of more than {MAX_LIST_BYTES // 2**20} MiB")
            slices.replace(await asyncio.to_thread(json.loads, body))

    async def _watch_until_expired(self, slices: Slices, take: Take) -> None:
        expired = False
        while not expired:
            try:
                async with asyncio.timeout(self._watch_s + self._grace_s):
                    await self._watch(slices, take)
            except Expired:
                expired = True
            else:
                take(slices.found())
            # Not at once: a server that ends every watch at its beginning must not be asked without end.
            await asyncio.sleep(self._chance.uniform(0.01, 0.02) * self._watch_s)

    async def _watch(self, slices: Slices, take: Take) -> None:
        asked = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": slices.version}
        asked["timeoutSeconds"] = str(max(1, int(self._watch_s)))
        async with self._get(asked) as response:
            if response.status == GONE:
                raise Expired
            _require_good(response)
            lines = Lines(MAX_EVENT_BYTES)
            async for piece in response.content.iter_any():
                events = lines.feed(piece)
                for event in events:
                    slices.apply(json.loads(event))
                if events:
                    take(slices.found())

    @asynccontextmanager
    async def _get(self, asked: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        account = await background.apart(partial(self._account.read, namespace=self._entry.namespace))
        url = f"{self._entry.api}/apis/discovery.k8s.io/v1/namespaces/{account.namespace}/endpointslices"
        async with self._session.get(
            url,
            params={"labelSelector": self._labels, **asked},
            headers={"Authorization": f"Bearer {account.token}", "Accept": "application/json"},
            ssl=account.tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            allow_redirects=False,
        ) as response:
            yield response


def _require_good(response: aiohttp.ClientResponse) -> None:
    status = response.status
    if status == HTTPStatus.OK:
        return
    advice = {
        HTTPStatus.UNAUTHORIZED: "; it does not accept the service account's token",
        HTTPStatus.FORBIDDEN: "; the service account needs a Role that lets it list and watch endpointslices",
    }
    raise Away(f"{response.url.origin()} answered {status}{advice.get(HTTPStatus(status), '')}")
