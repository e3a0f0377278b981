"""What applies to one principal and model now, where each figure comes from, and how much of each is used."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway import config
from gateway.admission.headers import go_window
from gateway.admission.limit import Limit
from gateway.admission.overrides.merge import source
from gateway.admission.overrides.override import Override
from gateway.admission.rules import Applying
from gateway.admission.settings.members import shown
from gateway.admission.store import StoreUnavailable
from gateway.errors import InvalidValue

COLUMNS = ("rule", "limit", "used", "remaining", "measure", "window", "shadow", "source")

ReadUsed = Callable[[Sequence[Limit]], Awaitable[Sequence[int]]]


def model_asked(name: str, models: Mapping[str, config.ModelEntry]) -> tuple[str, str]:
    """Return the model that `name` means, which may be an alias, and its pool: of several that with most of its calls.

    Raises:
        InvalidValue: there is no such model.
    """
    for model, entry in models.items():
        if name == model or name in entry.aliases:
            return model, max(entry.pool, key=entry.pool.__getitem__)
    raise InvalidValue(f"There is no model {shown(name)}; there are {', '.join(models)}.", param="model")


async def used_of(read: ReadUsed, limits: Sequence[Limit]) -> Sequence[int | None]:
    """Return what is used of each limit; None where the store cannot say."""
    try:
        return await read(limits)
    except StoreUnavailable:
        return [None] * len(limits)


def applied(
    applying: Applying, used: Sequence[int | None], overrides: Collection[Override], *, limits: config.Limits
) -> Iterator[dict[str, Any]]:
    """Yield a row for each limit that applies. `overrides` are those in force."""
    tenant, key = applying.account.tenant, applying.account.key
    its = [override for override in overrides if override.tenant == tenant]
    entry = limits.tenants.get(tenant, config.TenantEntry())
    for limit, so_much in zip(applying.limits, used, strict=True):
        figure = "concurrent" if limit.measure == "concurrency" else limit.measure
        yield {
            "rule": limit.rule,
            "limit": limit.limit,
            "used": so_much,
            "remaining": None if so_much is None else max(limit.limit - so_much, 0),
            "measure": figure if limit.count == "total" else f"{limit.count} {figure}",
            "window": None if limit.kind == "lease" else _window(limit),
            "shadow": limit.shadow,
            "source": source(entry, its, key=key, rule=limit.rule, figure=figure),
        }


def _window(limit: Limit) -> str:
    return go_window(limit.window_us) if limit.kind == "bucket" else limit.kind
