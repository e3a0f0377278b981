"""A DNS server for tests, on a real UDP and TCP socket of one port: it has the records that a test gives it.

server.records["vllm.test.", "A"] = ["127.0.0.1"]
server.rcodes["A"] = "SERVFAIL"          for all questions of that type; "SILENCE": no answer
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.ports import free_port

SILENCE = "SILENCE"


class DnsServer(asyncio.DatagramProtocol):
    """`asked` has each question by type and transport. `truncates`: what is asked by UDP comes without its records."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Sequence[str]] = {}
        self.beside: dict[tuple[str, str], Sequence[str]] = {}  # comes along in the additional section
        self.rcodes: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.ttl = 0
        self.truncates = False
        self.garbage: bytes | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if answer := self._answer(data, "udp"):
            self._transport.sendto(answer, addr)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2))
        answer = self._answer(await reader.readexactly(size), "tcp")
        if answer:
            writer.write(len(answer).to_bytes(2) + answer)
            await writer.drain()
        writer.close()

    def _answer(self, data: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        kind, name = dns.rdatatype.to_text(question.rdtype), str(question.name)
        self.asked.append((kind, transport))
        rcode = self.rcodes.get(kind)
        if rcode == SILENCE:
            return None
        if self.garbage is not None:
            return data[:2] + self.garbage
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if rcode is not None:
            response.set_rcode(dns.rcode.from_text(rcode))
        elif transport == "udp" and self.truncates:
            response.flags |= dns.flags.TC
        elif (name, kind) in self.records:
            if self.records[name, kind]:
                response.answer.append(dns.rrset.from_text(name, self.ttl, "IN", kind, *self.records[name, kind]))
            response.additional += [
                dns.rrset.from_text(other, self.ttl, "IN", its, *texts) for (other, its), texts in self.beside.items()
            ]
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire()


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    server, loop = DnsServer(), asyncio.get_running_loop()
    tcp = await asyncio.start_server(server.serve, "127.0.0.1", free_port())
    port = tcp.sockets[0].getsockname()[1]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))
    udp.setblocking(False)
    transport, _ = await loop.create_datagram_endpoint(lambda: server, sock=udp)
    server.address = f"127.0.0.1:{port}"
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
