"""What the benchmark says of identity is what happened: a provider that hangs is asked, and calls go on meanwhile."""

import uvloop

from bench import report, tokens
from bench.calls import calls, identity
from bench.identity import KINDS, Identity, Provider, Slices, compared, gateway
from bench.load import connect
from bench.stand import stand


def test_the_gateway_asks_the_provider_while_it_hangs_and_knows_no_stranger() -> None:
    async def takes_another_keys_token(port: int) -> bool:
        connection = await connect(port)
        try:
            return await connection.ask(calls(identity().token).small)
        finally:
            connection.close()

    with Provider() as provider, stand([gateway(provider)]) as running:
        measuring = Identity(Slices(seconds=1.2, rate=50), provider)
        before = provider.asked
        uvloop.run(measuring.round(0, running))
        assert provider.asked >= before + 2
        assert not uvloop.run(takes_another_keys_token(running.proxies[0].port))
    assert set(measuring.figures) == set(KINDS)
    p99 = {kind: one.values["delay99"][0] for kind, one in measuring.figures.items()}
    assert f"p99 {p99['hangs']:.0f} µs while the provider hangs, {p99['answers']:.0f} µs" in compared(measuring.figures)
    for one in measuring.figures.values():
        assert set(one.values) == set(report.IDENTITY)
        assert one.answers.bad == 0
        assert one.answers.good > 20


def test_every_kind_of_token_is_measured() -> None:
    head, _, *rows = tokens.table(tokens.QUICK).splitlines()
    assert head.count("|") == 8
    for row in rows:
        known, new, pyjwt, signature, check, ratio = (float(cell) for cell in row.split("|")[2:8])
        assert 0 < known < min(new, pyjwt, signature, check)
        assert ratio > 0
    assert len(rows) == 4
