"""The revocations of one running gateway: what is kept in the store in, who is denied out."""

from collections.abc import Callable, Collection

from gateway.admission.settings.entry import Entry
from gateway.admission.settings.in_force import InForce
from gateway.admission.settings.members import iso
from gateway.clock import Clock
from gateway.identity.denied import Denied
from gateway.revocations.revocation import Revocation, judge

# Their name among the settings that a store keeps.
REVOCATIONS = "revocations"


class Revocations(InForce[Revocation]):
    """Owns who is denied. `deny` is told whenever somebody else is."""

    def __init__(self, deny: Callable[[Denied], None], clock: Clock) -> None:
        super().__init__(clock, what="revocation")
        self._deny = deny
        self._names: set[str] = set()

    def judge(self, name: str, value: bytes) -> Entry[Revocation]:
        """It holds where it can be read."""
        return judge(name, value)

    def said(self, setting: Revocation) -> str:
        """Return until when it holds."""
        return "revoked" if setting.until is None else f"revoked until {iso(setting.until)}"

    def follow(self, changed: Collection[Revocation]) -> None:  # noqa: ARG002 it is worked out from all
        """Have identity follow, where others are denied than before."""
        before, self._names = self._names, {one.name for one in self.holding}
        if before != self._names:
            self._deny(_denied(self.holding))


def _denied(holding: Collection[Revocation]) -> Denied:
    return Denied(
        tenants=frozenset(one.tenant for one in holding if one.key is None and one.jti is None),
        keys=frozenset((one.tenant, one.key) for one in holding if one.key is not None),
        tokens=frozenset((one.tenant, one.jti) for one in holding if one.jti is not None),
    )
