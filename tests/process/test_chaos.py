"""A short run of `make chaos` for each kind of store: whatever breaks, the books are right afterwards."""

from pathlib import Path

import pytest

from tests.chaos.run import run
from tests.chaos.topologies import TOPOLOGIES

pytestmark = pytest.mark.compiled

SECONDS = 6.0
# Always the same, so that a failure is looked for again with the same calls and faults. `make chaos` draws new ones.
SEED = 84


@pytest.mark.parametrize("topology", list(TOPOLOGIES))
async def test_under_faults_of_every_kind_the_books_are_right_and_nothing_leaks(topology: str, tmp_path: Path) -> None:
    verdict = await run(topology, tmp_path, seconds=SECONDS, seed=SEED, say=lambda _: None)
    assert not verdict.violations
    assert {fault.track for fault in verdict.evidence.faults} == {"configs", "engines", "gateways", "store"}
    assert {"worker killed", "gateway killed"} <= {fault.name for fault in verdict.evidence.faults}
    lines = [line.fields for line in verdict.evidence.lines.values()]
    assert {"large", "small-a", "small-b"} <= {one["pool"] for one in lines}
    assert any(one["fallback_for"] for one in lines)
    assert any(one["waited_ms"] for one in lines)
    assert len(verdict.evidence.seen) > 100
