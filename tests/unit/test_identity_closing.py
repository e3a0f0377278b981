"""The end of the identity stage: an issuer that does not let go holds up neither the others nor the gateway's end."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import config
from gateway.clock import SystemClock
from gateway.identity.authenticate import Authenticator
from gateway.identity.trust import Judges, Trust
from tests.deadlines import DEADLINE_S
from tests.identity_provider import key_set, signing_key


class Hanging:
    """Grants that hear of no end."""

    async def retire(self) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.Event().wait()


class Ending:
    """Grants that tell when they were ended."""

    def __init__(self) -> None:
        self.ended = False

    async def retire(self) -> None:
        pass

    async def close(self) -> None:
        self.ended = True


def judges(name: str, grants: Any) -> Judges:
    return Judges(config.Issuer(issuer=name, jwks="keys.json"), None, grants)


@pytest.mark.parametrize("which", ["close", "abandon", "retired"])
async def test_one_that_hangs_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str) -> None:
    (tmp_path / "keys.json").write_bytes(key_set(signing_key()))
    auth = config.Auth(issuers=(config.Issuer(issuer="idp", jwks=str(tmp_path / "keys.json")),))
    async with aiohttp.ClientSession() as session:
        stage = Authenticator(
            auth, session, clock=SystemClock(), observe=lambda _issuer, _result: None, close_within_s=0.05
        )
        trust: Trust = await stage.prepare(config.Auth(issuers=(*auth.issuers, config.Issuer(issuer="b", jwks="b"))))
        last = Ending()
        trust.judges[:] = [judges("hangs", Hanging()), judges("ends", last)]
        async with asyncio.timeout(DEADLINE_S):
            if which == "abandon":
                await stage.abandon(trust)
            else:
                stage.adopt(trust)
            if which == "retired":
                again = await stage.prepare(auth)
                stage.adopt(again)
                await asyncio.sleep(0)  # the judges that are left begin to retire
            await stage.close()
    assert last.ended
    assert "hangs takes longer than 0.05 s; it is left behind" in caplog.text
