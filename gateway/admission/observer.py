"""What admission tells whoever counts: metrics are a later stage's business. Every name in it comes from the config."""

from typing import Literal, Protocol

Decision = Literal["admitted", "refused", "shadow"]
Operation = Literal["reserve", "settle", "renew", "connect"]


class Observer(Protocol):
    """Told of decisions and of the store's health. Must not block or raise."""

    def limit_decided(self, rule: str, decision: Decision) -> None:
        """A rule let a call through, refused it, or would have refused it were it not a shadow."""

    def limits_admitted(self, rules: tuple[str, ...]) -> None:
        """All of these rules let one call through."""

    def plan_unknown(self) -> None:
        """A token claimed a plan that does not exist; the default plan was used."""

    def store_answered(self, operation: Operation, seconds: float) -> None:
        """The store answered a pipeline that held this operation."""

    def store_failed(self, operation: Operation) -> None:
        """The store did not answer, or answered that it cannot."""

    def settlement_dropped(self) -> None:
        """A settlement will never reach the store: its reservation stays charged in full."""
