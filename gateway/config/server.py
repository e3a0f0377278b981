"""`server` and `admin`: where this process listens, and for whom."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.config import cpus, units
from gateway.config.section import Duration, Section, Size

# More than any machine has CPUs for; a mistyped figure should not start thousands.
MAX_WORKERS = 256


class Listen(Section):
    """An address to listen on, written `host:port`, `[ipv6]:port` or `:port` (everywhere); port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def at(self, port: int) -> Self:
        """Return the same host with the port that was taken for 0."""
        return self.model_copy(update={"port": port})

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        host, colon, port = value.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 the largest TCP port
            raise ValueError(f"expected host:port such as 0.0.0.0:8080, got {value!r}")
        return {"host": host.strip("[]") or "0.0.0.0", "port": int(port)}  # noqa: S104 what ":8080" asks for


def _listen(text: str) -> Listen:
    return Listen.model_validate(text)


def _workers(value: object) -> object:
    return cpus.usable() if value == "auto" else units.integer(value)


class Server(Section):
    """The tenant listener."""

    listen: Listen = _listen("0.0.0.0:8080")
    workers: Annotated[int, BeforeValidator(_workers), Field(strict=True, ge=1, le=MAX_WORKERS)] = 1
    max_body: Size = 20 * 2**20
    body_budget: Size = 256 * 2**20
    reuse_port: bool = False
    drain_delay: Duration = 0.0
    drain_timeout: Duration = 30.0
    write_timeout: Annotated[Duration, Field(gt=0)] | None = 60.0
    watch_config: Annotated[Duration, Field(ge=0.1)] | None = 1.0

    @model_validator(mode="after")
    def _largest_fits(self) -> Self:
        if self.body_budget < self.max_body:
            raise ValueError("body_budget: less than max_body, so that the largest bodies would always be refused")
        return self


class Admin(Section):
    """The operator listener: loopback unless told otherwise."""

    listen: Listen = _listen("127.0.0.1:9090")
