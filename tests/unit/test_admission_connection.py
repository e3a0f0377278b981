"""The store's replies as bytes, however they are cut: whose they are, which errors are whose, and what ends it all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.redis.connection import CommandRefused, ServerFailed
from tests.store_wire import wired


def written(reply: Any) -> bytes:
    """Return `reply` as a server writes it."""
    if isinstance(reply, list):
        return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))
    return b"$%d\r\n%b\r\n" % (len(reply), reply) if isinstance(reply, bytes) else b":%d\r\n" % reply


REPLIES = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=9), lambda inner: st.lists(inner, max_size=4)
)


@given(st.lists(st.lists(REPLIES, min_size=1, max_size=5), min_size=1, max_size=3), st.data())
def test_replies_are_the_same_wherever_they_are_cut(pipelines: list[list[Any]], data: st.DataObject) -> None:
    connection, wire = wired()
    for replies in pipelines:
        ended: list[list[Any] | ServerFailed] = []
        connection.exchange([b"a"] * len(replies), ended.append)
        raw = b"".join(map(written, replies))
        cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), unique=True).map(sorted))
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            assert ended == []
            connection.data_received(raw[start:end])
        assert ended == [replies]
    assert wire.written == [b"a" * len(replies) for replies in pipelines]
    assert not connection.closed


def test_an_error_that_concerns_one_command_stands_in_its_place_and_the_next_exchange_knows_nothing_of_it() -> None:
    connection, _ = wired()
    ended: list[Any] = []
    connection.exchange([b"a", b"b", b"c"], ended.append)
    connection.data_received(b":1\r\n-ERR no such thing\r\n:3\r\n")
    (replies,) = ended
    assert replies[::2] == [1, 3]
    assert isinstance(replies[1], CommandRefused)
    assert str(replies[1]) == "ERR no such thing"
    connection.exchange([b"d"], ended.append)
    connection.data_received(b":4\r\n")
    connection.exchange([b"e"], ended.append)
    connection.connection_lost(None)
    assert ended[1] == [4]
    assert str(ended[2]) == "the server closed the connection"


@pytest.mark.parametrize("word", ["OOM", "READONLY", "NOSCRIPT", "NOPERM", "LOADING", "WRONGTYPE"])
def test_an_error_that_concerns_the_server_fails_the_exchange_and_hangs_up(word: str) -> None:
    connection, wire = wired()
    ended: list[Any] = []
    connection.exchange([b"a", b"b", b"c"], ended.append)
    connection.data_received(f":1\r\n-ERR one\r\n-{word} of all\r\n".encode())
    (failure,) = ended
    assert isinstance(failure, ServerFailed)
    assert str(failure) == f"{word} of all"
    assert connection.closed
    assert wire.aborted


IN_SCRIPT = "ERR Error running script (call to f_5a1): @user_script:9: "


@pytest.mark.parametrize(
    ("text", "of_server"),
    [
        (f"{IN_SCRIPT}@user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.", True),
        (f"{IN_SCRIPT}@user_script: 9: -READONLY You can't write against a read only replica.", True),
        (f"{IN_SCRIPT}@user_script: 9: The user executing the script can't run this command or subcommand", True),
        (
            "ERR ACL failure in script: User gw has no permissions to run the 'zadd' command script: on @user_script.",
            True,
        ),
        (f"{IN_SCRIPT}@user_script: 9: ERR value is not an integer or out of range", False),
        ("ERR unknown command 'x', with args beginning with: '-OOM ' ", False),
    ],
)
def test_what_a_script_met_concerns_the_server_where_it_would_have_alone(text: str, *, of_server: bool) -> None:
    """Redis 6.2 and all access lists put it behind the script's own error."""
    connection, _ = wired()
    ended: list[Any] = []
    connection.exchange([b"a"], ended.append)
    connection.data_received(f"-{text}\r\n".encode())
    assert isinstance(ended[0], ServerFailed) == connection.closed == of_server


@pytest.mark.parametrize(
    ("came", "error", "reason"),
    [
        (b"", None, "the server closed the connection"),
        (b":1\r\n", None, "the server closed the connection"),
        (b"", ConnectionResetError("reset by peer"), "reset by peer"),
        (b"-ERR max number of clients reached\r\n", ConnectionResetError("reset"), "ERR max number of clients reached"),
    ],
)
def test_a_lost_connection_fails_the_exchange_once_and_tells_what_the_server_said_last(
    came: bytes, error: Exception | None, reason: str
) -> None:
    connection, _ = wired()
    ended: list[Any] = []
    connection.exchange([b"a", b"b"], ended.append)
    if came:
        connection.data_received(came)
    connection.connection_lost(error)
    connection.connection_lost(error)
    assert [str(failure) for failure in ended] == [reason]
    assert connection.closed


def test_what_is_not_the_protocol_fails_the_exchange_and_hangs_up() -> None:
    connection, wire = wired()
    ended: list[Any] = []
    connection.exchange([b"a"], ended.append)
    connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    (failure,) = ended
    assert isinstance(failure, ServerFailed)
    assert wire.aborted


def test_a_reply_that_nobody_asked_for_is_nobodys_answer() -> None:
    connection, wire = wired()
    ended: list[Any] = []
    connection.exchange([b"a"], ended.append)
    connection.data_received(b":1\r\n:2\r\n")
    (failure,) = ended
    assert isinstance(failure, ServerFailed)
    assert wire.aborted
    idle, wire = wired()
    idle.data_received(b":1\r\n")
    assert idle.closed
    assert wire.aborted


def test_whoever_hangs_up_hears_no_more() -> None:
    connection, wire = wired()
    ended: list[Any] = []
    connection.exchange([b"a"], ended.append)
    connection.abort()
    connection.data_received(b":1\r\n")
    connection.connection_lost(None)
    assert ended == []
    assert wire.aborted
