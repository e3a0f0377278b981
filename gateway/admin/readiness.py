"""Whether this gateway should be sent calls, and if not, why not. It asks the other parts and probes nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK = "ok"
READY = "ready"
NOT_READY = "not_ready"

# None while all is well, else one sentence that says what is not ready.
Check = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Readiness:
    """The conditions of `/readyz`.

    `draining`: not once it began to stop. `identity`: not before the first key set is there. `pools`: not while no
    pool at all has a replica that is up and not drained; one pool that has none must not take a gateway out that serves
    the others.
    `store`: given only where a store that is down means that every call is refused: under `on_store_failure: deny`.
    """

    draining: Check
    identity: Check
    pools: Check
    store: Check | None = None

    def checks(self) -> dict[str, str]:
        """Return each condition's name with `ok` or the sentence that says why not."""
        named = {"draining": self.draining, "identity": self.identity, "pools": self.pools, "store": self.store}
        return {name: check() or OK for name, check in named.items() if check is not None}

    def told(self) -> dict[str, Any]:
        """Return the answer's body."""
        checks = self.checks()
        return {"status": READY if all(state == OK for state in checks.values()) else NOT_READY, "checks": checks}
