"""What is left when all is over and the leases have run out: nothing that lives for ever, and no process that died."""

from collections.abc import Iterator

from tests.chaos.evidence import Evidence, Violation, violated

_EXIT_CODES = {"killed": -9, "orphaned": -9, "stopped": 0}


def judge(evidence: Evidence) -> Iterator[Violation]:
    """Yield what should not be there."""
    yield from violated(
        "no lease is leaked", [f"{key.name}: {key.size}" for key in evidence.keys if key.kind == "zset" and key.size]
    )
    yield from violated("every key has an expiry", [key.name for key in evidence.keys if key.ttl_ms == -1])
    yield from violated(
        "every key is the gateway's", [key.name for key in evidence.keys if not key.name.startswith("gw:")]
    )
    yield from violated(
        "nothing is in flight", [f"{name} {value:g}" for name, value in evidence.gauges.items() if value]
    )
    yield from violated("journals are empty", [f"{name}: {size} bytes" for name, size in evidence.journals.items()])
    yield from violated("a gateway goes by the config that is there", evidence.outdated)
    lives = evidence.lives
    yield from violated("a gateway that is told to stop does", [life.name for life in lives if life.lingers])
    yield from violated(
        "no gateway ends by itself",
        [
            f"{life.name}: {life.exit_code}"
            for life in lives
            if not life.lingers and life.exit_code != _EXIT_CODES.get(life.ending)
        ],
    )
    yield from violated(
        "logs are lines of JSON", [f"{life.name}: {line[:200]}" for life in lives for line in life.garbled]
    )
    yield from violated(
        "no error and no traceback is logged",
        [
            f"{life.name}: {one['message']} {one['exception'] or ''}"
            for life in lives
            for one in life.messages
            if one["exception"] or (one["level"] in {"error", "critical"} and not life.is_of_a_kill(one))
        ],
    )
