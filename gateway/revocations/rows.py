"""How revocations are shown to whoever looks at them."""

from typing import Any

from gateway.admission.settings.rows import Rows
from gateway.revocations.revocation import Revocation


def _members(one: Revocation) -> dict[str, Any]:
    return {"tenant": one.tenant, "key": one.key, "jti": one.jti, "reason": one.reason}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    key = row.get("key") or ("" if "jti" in row else "(all)")
    return row["tenant"], key, row.get("jti", ""), row.get("reason", "")


ROWS: Rows[Revocation] = Rows(("tenant", "key", "jti", "reason"), _members, _cells)
