"""The worked example of docs/limits.md, replayed line by line."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import yaml

from gateway import config, errors
from gateway.admission.admission import Admission
from gateway.admission.memory import MemoryStore
from gateway.admission.permit import Permit
from gateway.admission.rules import Rulebook
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.identity.principal import Principal
from tests.documents import block_in, rows, section, text_of
from tests.limiting import LEASE_S, SECOND, Remembering, SetClock, shown

BODY_BYTES = 900


@dataclass
class Replay:
    """The gateway of the example, and the lines that it must follow."""

    lines: list[list[str]]
    admission: Admission

    async def ask(self, output: int) -> Permit | None:
        """Make the next call; its line says what it asks and what it gets."""
        name, asks, gets, _ = self.lines.pop(0)
        call = Call(
            "chat",
            "m",
            b"",
            stream=False,
            include_usage=False,
            continuous_usage=False,
            input_tokens=BODY_BYTES // 4,
            output_tokens=output,
        )
        permit, told = None, ""
        try:
            permit = await self.admission.admit(
                Principal("acme", "key-1"), call, model="m", pool="p", default_output_tokens=1, call_id=name
            )
        except errors.TooMany as refused:
            told = f"429: *{refused.message}*"
        if permit is not None:
            told = f"200, `x-ratelimit-remaining-tokens: {shown(permit)['x-ratelimit-remaining-tokens']}`"
        assert asks.endswith(f"`max_tokens: {output}`")
        assert gets == told
        return permit

    def end(self, permit: Permit | None, *, prompt: int, completion: int) -> None:
        """End a call; the next line says so."""
        assert permit is not None
        assert f"{prompt} + {completion} tokens" in self.lines.pop(0)[1]
        permit.settle(Usage(prompt=prompt, completion=completion))


def test_the_weighted_calls_count_what_is_told() -> None:
    rules = yaml.safe_load(block_in(section("limits", "Weights"), "limits:"))["limits"]["plans"]["standard"]
    book = Rulebook(config.Limits.model_validate({"plans": {"standard": rules}}))
    (limit,) = book.applying(Principal("acme", "key-1"), model="m", pool="p").limits
    assert limit.price is not None
    told = [row for row in rows(section("limits", "Weights")) if row[0].startswith(("reserves", "used"))]
    assert len(told) == 4
    for call, counts in told:
        parts = {kind: int(tokens) for tokens, kind in re.findall(r"(\d+) (cached|reasoning)", call)}
        prompt, completion = map(int, re.findall(r"(?:used|\+|reserves|and) (\d+)", call))
        price = limit.price if call.startswith("used") else limit.price.dearest
        units = price.units(prompt, completion, parts.get("cached", 0), parts.get("reasoning", 0))
        assert units == int(counts), call


async def test_the_worked_example_is_what_happens() -> None:
    rules = yaml.safe_load(block_in(text_of("limits"), "limits:"))["limits"]["plans"]["standard"]
    clock = SetClock(round(datetime(2026, 11, 30, 1, tzinfo=UTC).timestamp() * SECOND))
    limits = config.Limits.model_validate({"plans": {"standard": rules}})
    admission = Admission(limits, MemoryStore(clock, lease_s=LEASE_S), clock, observer=Remembering())
    replay = Replay(rows(section("limits", "Worked example"))[1:], admission)

    first = await replay.ask(2000)
    await replay.ask(8000)
    replay.end(first, prompt=210, completion=300)
    replay.end(await replay.ask(8000), prompt=210, completion=12000)
    await replay.ask(100)
    clock.us += 60 * SECOND
    for output in (9000, 7000, 20000):
        await replay.ask(output)
    assert replay.lines == []
