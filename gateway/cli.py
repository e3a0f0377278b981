"""The `gateway` command: its subcommands by name, each a module of `gateway.commands`."""

import os
import signal
from importlib import import_module
from typing import Any

import click

import gateway

_COMMANDS = {
    "check": "Validate the config file and say what it amounts to.",
    "demo": "Serve two simulated engines on embedded defaults, and print a call to paste.",
    "engine": "Run a simulated engine that speaks vLLM's wire format, for trials and load tests.",
    "key": "Make keys for clients that have no identity provider.",
    "limit": "Show and change limits while gateways run.",
    "replica": "Drain, add and remove replicas in every gateway, while they run.",
    "revoke": "Refuse a tenant's tokens, those of one key, or one token, in every gateway.",
    "serve": "Serve calls until SIGTERM or SIGINT, then drain.",
    "status": "Show how a running gateway does: what is amiss, its pools, and calls that did not end well.",
    "token": "Sign a development token with the config's development key, which is created if it does not exist.",
    "usage": "Show what tenants used, from the ledger in the config's limits.store.",
}


class Later(click.Command):
    """A command whose module is imported when it is asked for: no other command waits for what this one needs."""

    def loaded(self) -> click.Command:
        """Return the command itself."""
        if self.name == "serve":
            _be_told_early()
        command: click.Command = getattr(import_module(f"gateway.commands.{self.name}"), str(self.name))
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Have the command itself read its arguments, and run."""
        return self.loaded().make_context(info_name, args, parent, **extra)


def _be_told_early() -> None:
    """End well where told to stop while modules are still imported, and do not end where told to reload.

    The first process of a container would not hear SIGTERM at all, and SIGHUP ends any that has said nothing of it.
    It ends on the spot: what is raised amid an import may be taken for the module's own failure.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


@click.group(commands=[Later(name, short_help=text) for name, text in _COMMANDS.items()])
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """The front door of LLM inference pools."""
