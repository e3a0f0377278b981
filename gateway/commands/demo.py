"""What `make run` runs: the whole gateway on embedded defaults before two simulated engines, and a call to paste."""

import tempfile
from pathlib import Path

import click

from gateway.app import Gateway
from gateway.clock import SystemClock
from gateway.commands.running import until_told_to_stop
from gateway.commands.serve import run_gateway
from gateway.config import file
from gateway.engine.server import SimulatedEngine
from gateway.identity import development
from gateway.telemetry import logs
from gateway.telemetry.writer import LineWriter

MODEL = "demo/simulated-8b"
TOKENS_PER_SECOND = 25.0
TOKEN_TTL_S = 86400.0

_CONFIG = """
server: {{listen: "127.0.0.1:8080"}}
admin: {{listen: "127.0.0.1:9090"}}
auth: {{development_key: "{key}"}}
models:
  {model}: {{pool: demo, aliases: [demo]}}
pools:
  demo: {{replicas: ["http://127.0.0.1:{first}", "http://127.0.0.1:{second}"]}}
logging: {{format: text}}
"""

_WELCOME = """
The gateway is up, before two simulated engines. In another terminal:

TOKEN={token}

curl -sN http://127.0.0.1:{port}/v1/chat/completions \\
  -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "max_tokens": 32, "stream": true}}'

Leave out "stream" for one whole answer. How it does: http://127.0.0.1:{admin_port}/admin/ in a browser, or
gateway status --at 127.0.0.1:{admin_port}. Stop: Ctrl-C. A line for each call follows.
"""


@click.command()
def demo() -> None:
    """Serve two simulated engines on embedded defaults, and print a call to paste."""
    run_gateway(_demo())


async def _demo() -> None:
    engines = [SimulatedEngine(MODEL, tokens_per_second=TOKENS_PER_SECOND) for _ in range(2)]
    writer = LineWriter()
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder:
        key = Path(folder) / "development-key.pem"
        signing = development.load_or_create(key)
        first, second = [await engine.start() for engine in engines]
        settings = file.parse(_CONFIG.format(key=key, model=MODEL, first=first, second=second), source="demo")
        logs.configure(settings.logging, writer)
        writer.start()
        try:
            clock = SystemClock()
            door = Gateway(file.Loaded(settings, {}), writer, clock)
            port, admin_port = await door.start()
            now = clock.now()
            token = development.sign(signing, tenant="demo", key_id="demo-key", plan=None, ttl_s=TOKEN_TTL_S, now=now)
            click.echo(_WELCOME.format(token=token, port=port, model=MODEL, admin_port=admin_port))
            await until_told_to_stop()
            await door.stop()
        finally:
            writer.close()
            for engine in engines:
                await engine.close()
