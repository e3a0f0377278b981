import logging
import subprocess
import sys
from collections.abc import Iterator
from queue import Queue
from threading import Event

import pytest

from gateway.telemetry.writer import MAX_LINES, LineWriter
from tests.deadlines import DEADLINE_S


class Sink:
    """Takes what is written; a test may hold it up or make it fail."""

    def __init__(self) -> None:
        self.written: Queue[bytes] = Queue()
        self.asked = Event()
        self.may_write = Event()
        self.may_write.set()
        self.errors: list[Exception] = []

    def __call__(self, data: bytes) -> None:
        self.asked.set()
        self.may_write.wait(DEADLINE_S)
        if self.errors:
            raise self.errors.pop()
        self.written.put(data)

    def next(self) -> bytes:
        return self.written.get(timeout=DEADLINE_S)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def writer(sink: Sink) -> Iterator[LineWriter]:
    writer = LineWriter(sink)
    writer.start()
    yield writer
    sink.may_write.set()
    writer.close()


def test_a_line_is_written_without_being_asked_for(writer: LineWriter, sink: Sink) -> None:
    writer.write("one\n")
    assert sink.next() == b"one\n"


def test_closing_writes_what_is_left_in_order(writer: LineWriter, sink: Sink) -> None:
    for number in range(1000):
        writer.write(f"{number}\n")
    writer.close()
    written = b"".join(sink.written.queue)
    assert written == b"".join(b"%d\n" % number for number in range(1000))


def test_a_reader_that_does_not_read_holds_nobody_up_and_the_lost_lines_are_told(
    writer: LineWriter, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.may_write.clear()
    writer.write("first\n")
    writer.flush()
    assert sink.asked.wait(DEADLINE_S)
    for number in range(MAX_LINES + 3):
        writer.write(f"{number}\n")
    sink.may_write.set()
    assert sink.next() == b"first\n"
    writer.close()
    assert sink.next().count(b"\n") == MAX_LINES
    assert [record.args for record in caplog.records if record.levelno == logging.WARNING] == [(3,)]


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_broken_output_loses_lines_but_not_the_writer(
    writer: LineWriter, sink: Sink, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    sink.errors.append(error)
    writer.write("lost\n")
    writer.flush()
    assert sink.asked.wait(DEADLINE_S)
    writer.write("kept\n")
    writer.flush()
    assert sink.next() == b"kept\n"
    writer.close()
    assert [record.args for record in caplog.records] == [(1,)]


def test_a_process_whose_output_was_closed_by_its_reader_goes_on() -> None:
    script = (
        "import sys; from gateway.telemetry.writer import LineWriter\n"
        "writer = LineWriter(); writer.start()\n"
        "sys.stdin.read(); writer.write('line\\n'); writer.close(); print('alive', file=sys.stderr)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (0, "alive\n")


def test_standard_output_gets_every_byte() -> None:
    script = (
        "from gateway.telemetry.writer import LineWriter\n"
        "writer = LineWriter(); writer.start()\n"
        "for number in range(20000): writer.write('x' * 99 + '\\n')\n"
        "writer.close()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=DEADLINE_S)
    assert done.stdout == (b"x" * 99 + b"\n") * 20_000
