"""What a call's record says of its end where several things are true of it."""

from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.relay.outcome import Outcome
from gateway.trail import Trail


def test_an_answer_that_was_whole_but_never_taken_did_not_reach_its_client() -> None:
    trail = Trail("id", "chat", SystemClock())
    trail.outcome, trail.status, trail.stalled = Outcome("ok", Usage(1, 1), None), 200, True
    record = trail.record()
    assert (record.ending, record.broken_by) == ("client_gone", "write_timeout")
