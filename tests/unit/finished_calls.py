"""One finished call that went well; tests change what they are about."""

from typing import Any

from gateway.calls.usage import Usage
from gateway.telemetry.record import CallRecord

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

_STREAM: dict[str, Any] = {
    "inference_id": "3f6c1d1e0f1a4c0b9a57c8e7b2d4a911",
    "endpoint": "chat",
    "model": MODEL,
    "fallback_for": None,
    "tenant": "acme",
    "key": "key-1",
    "status": 200,
    "ending": "ok",
    "stream": True,
    "usage": Usage(prompt=100, completion=11, cached=40, reasoning=5),
    "usage_missing": None,
    "broken_by": None,
    "replica": "10.0.0.11:8000",
    "pool": "llama-8b",
    "attempts": 1,
    "failed_by": None,
    "started": 1_796_000_000.0,
    "duration_s": 1.5,
    "overhead_s": 0.0002,
    "waited_s": None,
    "first_byte_s": 0.5,
    "error_code": None,
}


def finished(**changes: Any) -> CallRecord:
    record = CallRecord()
    for name, value in (_STREAM | changes).items():
        setattr(record, name, value)
    return record
