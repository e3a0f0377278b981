"""The event loop of tests: what is left open is told at its close, and does not keep it from closing."""

import asyncio

import pytest

from tests.closing import ClosingLoop


def test_what_is_left_open_is_told_and_closed() -> None:
    loop = ClosingLoop()
    server = loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
    assert server.is_serving()
    with pytest.raises(ResourceWarning, match="left open: unclosed resource <TCPServer "):
        loop.close()
    assert loop.is_closed()


def test_a_loop_that_has_nothing_open_closes_without_a_word() -> None:
    loop = ClosingLoop()
    server = loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
    server.close()
    loop.run_until_complete(server.wait_closed())
    loop.close()
    assert loop.is_closed()
