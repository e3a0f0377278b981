"""`make run` on a machine where it cannot: it says why and ends."""

import asyncio
import socket
import sys
from contextlib import suppress

PORT = 8080


async def test_a_demo_whose_port_is_taken_says_so_in_one_line() -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # somebody else has it: as good
            taken.bind(("127.0.0.1", PORT))
            taken.listen()
        pipe = asyncio.subprocess.PIPE
        demo = await asyncio.create_subprocess_exec(sys.executable, "-m", "gateway", "demo", stdout=pipe, stderr=pipe)
        _, stderr = await asyncio.wait_for(demo.communicate(), timeout=20)
    (line,) = stderr.decode().splitlines()
    assert "listen: cannot listen on 127.0.0.1:" in line
    assert demo.returncode == 1
