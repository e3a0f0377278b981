"""Lists of models in the config that match no model there: aliases, or slips of the pen. Nobody hears of them else.

A rule for such a model limits nothing, and who is permitted such models may use none.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from gateway.config.root import Config


def unmatched(settings: Config) -> Iterator[str]:
    """Yield the path of each name or glob that matches none of the models, with what stands there."""
    for where, patterns in _lists(settings):
        for position, pattern in enumerate(patterns or ()):
            if not any(fnmatchcase(model, pattern) for model in settings.models):
                yield f"{where}[{position}], {pattern!r},"


def _lists(settings: Config) -> Iterator[tuple[str, Iterable[str] | None]]:
    for position, one in enumerate(settings.auth.api_keys):
        yield f"auth.api_keys[{position}].models", one.models
    for position, one in enumerate(settings.auth.api_keys_file or ()):
        yield f"auth.api_keys_file[{position}].models", one.models
    for tenant, entry in settings.auth.tenants.items():
        yield f"auth.tenants.{tenant}.models", entry.models
        for key, permitted in entry.keys.items():
            yield f"auth.tenants.{tenant}.keys.{key}.models", permitted.models
    for plan, rules in settings.limits.plans.items():
        for position, rule in enumerate(rules):
            yield f"limits.plans.{plan}[{position}].models", rule.models
