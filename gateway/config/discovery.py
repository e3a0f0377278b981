"""`pools.*.discovery`: where a pool's replicas are found while the gateway runs, and how they are then spoken to."""

from ipaddress import ip_address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr, StringConstraints, model_validator

from gateway.config import units
from gateway.config.section import Duration, Name, Positive, Section


def can_be_asked_for(host: str) -> str:
    """Return a host that can be looked up. ValueError: its name cannot, and whoever tried would meet a UnicodeError."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("expected a host name whose parts between dots have 1 to 63 characters") from None
    return host


HostName = Annotated[
    StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}$"), AfterValidator(can_be_asked_for)
]
Scheme = Literal["http", "https"]
Port = Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=1, le=65535)]
_PortName = Annotated[StrictStr, StringConstraints(pattern=r"^[a-z0-9-]{1,63}$")]
_Namespace = Annotated[StrictStr, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]

_DNS_PORT = 53


def dns_server(text: str) -> tuple[str, int]:
    """Return address and port of `10.0.0.10`, `10.0.0.10:53` or `[::1]:53`. ValueError says what was expected."""
    address, port = text, str(_DNS_PORT)
    if text.startswith("[") or text.count(":") == 1:
        address, _, port = text.rpartition(":")
    try:
        if port.isdecimal() and 0 < int(port) < 2**16:
            return str(ip_address(address.strip("[]"))), int(port)
    except ValueError:
        pass
    raise ValueError(f"expected an address, or address:port, such as 10.0.0.10:53, got {text!r}")


def _is_dns_server(text: str) -> str:
    dns_server(text)
    return text


class DnsEntry(Section):
    """A name in the DNS: with `port` the addresses that it has, without one its SRV records."""

    name: HostName
    port: Port | None = None
    family: Literal["both", "ipv4", "ipv6"] = "both"
    scheme: Scheme = "http"
    server_name: HostName | None = None
    servers: tuple[Annotated[StrictStr, AfterValidator(_is_dns_server)], ...] = ()
    interval: Annotated[Duration, Field(ge=0.05)] = 30.0
    timeout: Annotated[Duration, Field(gt=0)] = 5.0
    empty_after: Duration = 30.0

    @model_validator(mode="after")
    def _ports_of_one_kind(self) -> Self:
        if self.port is not None and self.name.startswith("_"):
            raise ValueError("port: SRV records, as of a name that begins with _, bring their own; leave it out")
        return self

    @property
    def host(self) -> str:
        """What replicas are called in TLS and in Host: `server_name`, or the name without SRV's _service._protocol."""
        labels = self.name.rstrip(".").split(".")
        while len(labels) > 1 and labels[0].startswith("_"):
            del labels[0]
        return self.server_name or ".".join(labels)


class KubernetesEntry(Section):
    """EndpointSlices of one namespace: of a Service, or those that a label selector finds."""

    namespace: _Namespace | None = None
    service: Name | None = None
    selector: Name | None = None
    port: Port | _PortName | None = None
    scheme: Scheme = "http"
    server_name: HostName | None = None
    api: Annotated[StrictStr, StringConstraints(pattern=r"^https://[^\s/@?#]+$")] = "https://kubernetes.default.svc"
    service_account: Name = "/var/run/secrets/kubernetes.io/serviceaccount"

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.service is None) == (self.selector is None):
            raise ValueError("expected exactly one of service, selector")
        return self


class FileEntry(Section):
    """A YAML or JSON file with a list such as `replicas`."""

    path: Name
    interval: Annotated[Duration, Field(ge=0.05)] = 1.0


class DiscoveryEntry(Section):
    """Exactly one kind of source, and how many replicas are taken from it."""

    dns: DnsEntry | None = None
    kubernetes: KubernetesEntry | None = None
    file: FileEntry | None = None
    max_replicas: Annotated[Positive, Field(le=10_000)] = 256

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.dns, self.kubernetes, self.file)) != 1:
            raise ValueError("expected exactly one of dns, kubernetes, file")
        return self
