"""The streams of events as Lua: which there are, how long they get, and what is written there with each booking."""

from importlib import resources

from gateway import config
from gateway.admission.redis.command import pack


def lua_of(events: config.Events | None) -> str:
    """Return what the scripts need for `events`: nothing where there are none."""
    if events is None:
        return ""
    constants = f"local EVENTS_OF, MAX_EVENTS = '{events.stream}', '{events.max_length}'\n"
    return constants + resources.files("gateway.admission.redis").joinpath("events.lua").read_text(encoding="utf-8")


def write_no_event(tag: str = "") -> bytes:
    """Return a command that fails where no event could be written, and writes none. `tag`: in whose slot."""
    return pack(["XADD", f"gw:{{{tag}}}:no-event" if tag else "gw:try", "NOMKSTREAM", "*", "call", ""])
