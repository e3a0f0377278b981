"""A stream read as WHATWG HTML 9.2.6 says a client must: lines first, then fields. None of the gateway's code."""

import json
from typing import Any


def data_of(stream: bytes) -> list[str]:
    """Return the data of each event that a client would be given; one that is not at its end is none."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    *lines, _ = text.split("\n")
    given, data = [], list[str]()
    for line in lines:
        if not line:
            given += ["\n".join(data)] if data else []
            data = []
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
    return given


def error_at_end(stream: bytes) -> dict[str, Any]:
    """Return the error object that is the stream's last event; an answer that broke off never says that it is done."""
    events = data_of(stream)
    assert not any(event.startswith("[DONE]") for event in events)
    error: dict[str, Any] = json.loads(events[-1])["error"]
    assert error["type"] == error["error_type"]
    assert error["message"]
    return error
