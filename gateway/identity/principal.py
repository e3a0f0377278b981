"""Who is calling, as a verified token says."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated client. Only `identity` makes one.

    `tenant` is whose quota and bill; `key` the credential's stable id (it survives token rotation); `plan` what the
    token claims, if anything; `models` the names or globs that it may use, None for all, () for none. `token_id` is the
    token's own name, if it has one: two tokens of one credential are the same principal.
    """

    tenant: str
    key: str
    plan: str | None = None
    models: tuple[str, ...] | None = None
    token_id: str | None = field(default=None, compare=False)

    def may_use(self, model: str) -> bool:
        """Whether this principal may use the model of this configured name. Globs: `*` crosses `/`."""
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)
