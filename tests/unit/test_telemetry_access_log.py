import json
from timeit import timeit
from typing import Any

import pytest

from gateway import config
from gateway.calls.usage import Usage
from gateway.telemetry.access_log import AccessLog
from tests.unit.finished_calls import MODEL, finished

JSON = config.Logging()


def test_a_call_is_one_json_line_with_everything_known_of_it() -> None:
    lines: list[str] = []
    AccessLog(JSON, lines.append).record(finished(started=1_796_000_000.0, duration_s=1.5))
    assert [json.loads(line) for line in lines] == [
        {
            "time": "2026-11-30T00:53:21.500Z",
            "inference_id": "3f6c1d1e0f1a4c0b9a57c8e7b2d4a911",
            "endpoint": "chat",
            "model": MODEL,
            "tenant": "acme",
            "key": "key-1",
            "status": 200,
            "outcome": "ok",
            "stream": True,
            "prompt_tokens": 100,
            "completion_tokens": 11,
            "cached_tokens": 40,
            "reasoning_tokens": 5,
            "usage_source": "engine",
            "replica": "10.0.0.11:8000",
            "pool": "llama-8b",
            "attempts": 1,
            "failed_by": None,
            "broken_by": None,
            "fallback_for": None,
            "duration_ms": 1500.0,
            "overhead_ms": 0.2,
            "waited_ms": None,
            "first_byte_ms": 500.0,
            "error_code": None,
        }
    ]


def test_lines_with_and_without_nulls_have_the_same_fields_in_the_same_order() -> None:
    lines: list[str] = []
    log = AccessLog(JSON, lines.append)
    log.record(finished(started=1_796_000_000.0, duration_s=1.0625))
    called = (
        f'"endpoint":"chat","model":"{MODEL}","tenant":"acme","key":"key-1","status":200,"outcome":"ok","stream":true'
    )
    assert lines == [
        '{"time":"2026-11-30T00:53:21.062Z","inference_id":"3f6c1d1e0f1a4c0b9a57c8e7b2d4a911",'
        + called
        + ',"prompt_tokens":100,"completion_tokens":11,"cached_tokens":40,"reasoning_tokens":5,"usage_source":"engine",'
        '"replica":"10.0.0.11:8000","pool":"llama-8b","attempts":1,"failed_by":null,"broken_by":null,"fallback_for":null,'
        '"duration_ms":1062.500,"overhead_ms":0.200,"waited_ms":null,"first_byte_ms":500.000,"error_code":null}\n'
    ]
    for change in (
        {"usage": None},
        {"overhead_s": None},
        {"first_byte_s": None},
        {"error_code": "overloaded"},
        {"waited_s": 2.5},
    ):
        log.record(finished(started=1_796_000_000.0, duration_s=1.0625, **change))
    first, *others = (json.loads(line, object_pairs_hook=list) for line in lines)
    for line in others:
        assert [name for name, _ in line] == [name for name, _ in first]


@pytest.mark.parametrize("seconds", [0.0, 0.0000005, 0.0000015, 0.9999996, 12345.6789])
def test_times_are_spelt_alike_in_lines_with_and_without_nulls(seconds: float) -> None:
    lines: list[str] = []
    log = AccessLog(JSON, lines.append)
    for error_code in (None, "overloaded"):
        times = {"duration_s": seconds, "overhead_s": seconds, "first_byte_s": seconds}
        log.record(finished(started=1_796_000_000.1239, error_code=error_code, **times))
    assert lines[0] == lines[1].replace('"overloaded"', "null")


def test_what_is_not_known_is_null() -> None:
    lines: list[str] = []
    unknown = ("model", "tenant", "key", "usage", "replica", "pool", "overhead_s", "first_byte_s")
    AccessLog(JSON, lines.append).record(
        finished(**dict.fromkeys(unknown), status=401, ending="refused", stream=False, error_code="invalid_token")
    )
    line = json.loads(lines[0])
    given = {name: value for name, value in line.items() if value is not None}
    assert given == {
        "time": "2026-11-30T00:53:21.500Z",
        "inference_id": "3f6c1d1e0f1a4c0b9a57c8e7b2d4a911",
        "endpoint": "chat",
        "status": 401,
        "outcome": "refused",
        "stream": False,
        "attempts": 1,
        "duration_ms": 1500.0,
        "error_code": "invalid_token",
    }
    assert {"model", "tenant", "key", "prompt_tokens", "usage_source", "replica", "first_byte_ms"} <= line.keys()


def test_a_tenant_and_a_key_with_newlines_stay_in_their_line() -> None:
    lines: list[str] = []
    for settings in (JSON, config.Logging(format="text")):
        AccessLog(settings, lines.append).record(finished(tenant='a\n{"status":200}', key="k\r\n\u2028\ud800"))
    assert len(lines) == 2
    assert [line.splitlines() for line in lines] == [[line[:-1]] for line in lines]
    assert json.loads(lines[0])["tenant"] == 'a\n{"status":200}'


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"endpoint": "completions"}, "endpoint"),
        ({"model": None}, "model"),
        ({"tenant": "100%s"}, "tenant"),
        ({"key": None}, "key"),
        ({"status": 502}, "status"),
        ({"ending": "broken"}, "outcome"),
        ({"stream": False}, "stream"),
        ({"usage": Usage(100, 11, 40, 5, source="estimated")}, "usage_source"),
        ({"replica": "10.0.0.12:8000"}, "replica"),
        ({"pool": "other"}, "pool"),
        ({"attempts": 2}, "attempts"),
        ({"failed_by": "status 401"}, "failed_by"),
        ({"broken_by": "reset"}, "broken_by"),
        ({"fallback_for": "other"}, "fallback_for"),
        ({"error_code": "overloaded"}, "error_code"),
    ],
)
def test_what_is_kept_ready_for_one_call_is_not_said_of_another(changed: dict[str, Any], field: str) -> None:
    lines: list[str] = []
    log = AccessLog(JSON, lines.append)
    for call in (finished(), finished(**changed), finished()):
        log.record(call)
    first, second, third = (json.loads(line) for line in lines)
    assert first == third
    assert {name for name, value in second.items() if value != first[name]} == {field}


def test_text_is_readable() -> None:
    lines: list[str] = []
    text = AccessLog(config.Logging(format="text"), lines.append)
    text.record(finished(tenant="Acme Inc", usage=None, pool=None))
    expected = (
        "time=2026-11-30T00:53:21.500Z inference_id=3f6c1d1e0f1a4c0b9a57c8e7b2d4a911 endpoint=chat "
        f'model={MODEL} tenant="Acme Inc" key=key-1 status=200 outcome=ok stream=true replica=10.0.0.11:8000 '
        "attempts=1 duration_ms=1500.000 overhead_ms=0.200 first_byte_ms=500.000\n"
    )
    assert lines == [expected]


def test_a_line_costs_less_than_json_dumps_of_its_fields() -> None:
    lines: list[str] = []
    call = finished()
    AccessLog(JSON, lines.append).record(call)
    fields = json.loads(lines[0])
    log = AccessLog(JSON, lambda _line: None)
    # By turns, and each so shortly that the machine has a time for it in which it does nothing else.
    both = (lambda: log.record(call), lambda: json.dumps(fields, separators=(",", ":")))
    times = [[timeit(one, number=100) for one in both] for _ in range(300)]
    ours, dumps = (min(column) for column in zip(*times, strict=True))
    assert ours < dumps, f"{ours / 100 * 1e6:.1f} µs a line, json.dumps {dumps / 100 * 1e6:.1f}"
