import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway import config
from gateway.telemetry.logs import configure


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    handlers, level = list(root.handlers), ours.level
    yield
    for added in set(root.handlers) - set(handlers):
        root.removeHandler(added)
    ours.setLevel(level)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_line(stream: io.StringIO) -> None:
    configure(config.Logging(), stream)
    logging.getLogger("gateway.routing").info("replica %s\nis up", "a:1", extra={"inference_id": "x1"})
    (line,) = lines(stream)
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "gateway.routing",
        "message": "replica a:1\nis up",
        "inference_id": "x1",
        "exception": None,
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_stays_in_the_line_of_its_record(stream: io.StringIO, form: str) -> None:
    configure(config.Logging.model_validate({"format": form}), stream)
    logging.getLogger("gateway.pipeline").error("defect", exc_info=RuntimeError("two\nlines"))
    assert len(stream.getvalue().splitlines()) == 1
    assert "RuntimeError: two\\nlines" in stream.getvalue()


def test_text_is_readable(stream: io.StringIO) -> None:
    configure(config.Logging(format="text"), stream)
    logging.getLogger("gateway.routing").warning("replica down")
    assert stream.getvalue().endswith('level=warning logger=gateway.routing message="replica down"\n')


def test_the_level_is_for_our_loggers_and_libraries_speak_from_warnings_on(stream: io.StringIO) -> None:
    configure(config.Logging(level="debug"), stream)
    logging.getLogger("gateway.relay").debug("ours")
    logging.getLogger("other.package").info("not wanted")
    logging.getLogger("other.package").warning("theirs")
    assert [line["message"] for line in lines(stream)] == ["ours", "theirs"]


def test_configuring_again_replaces_and_does_not_repeat(stream: io.StringIO) -> None:
    configure(config.Logging(), io.StringIO())
    configure(config.Logging(level="error"), stream)
    logging.getLogger("gateway.relay").warning("too little")
    logging.getLogger("gateway.relay").error("once")
    assert [line["message"] for line in lines(stream)] == ["once"]
