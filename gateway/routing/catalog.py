"""Model names and aliases -> `Model`: what clients may name, and where its calls go."""

import random
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from gateway.calls.call import Call
from gateway.calls.estimate import Estimate
from gateway.calls.features import fits
from gateway.config import ModelEntry, Timeouts
from gateway.errors import ModelNotFound
from gateway.identity.principal import Principal
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from gateway.routing.split import Split

# What a header may hold as it is, in a name: all that can be seen but for what begins an escape.
_PLAIN = string.punctuation.replace("%", "")


@dataclass(frozen=True, slots=True)
class Model:
    """A configured model at one of its pools: its name, its entry in config.yaml, and the timeouts that both make.

    `estimate` is what was learned of its prompts. `split` has the same model at each of its pools, if it has several.
    `told` is the line of an answer's head that says which model answered.
    """

    name: str
    entry: ModelEntry
    pool: Pool
    timeouts: Timeouts
    estimate: Estimate
    told: str
    split: "Split[Model] | None" = field(default=None, compare=False, repr=False)

    def name_at(self, replica: Replica) -> str:
        """What the engine on this replica calls the model."""
        return replica.served_name or self.entry.served_name or self.name

    @property
    def others(self) -> "Iterable[Model]":
        """The same model at its other pools, the largest share first."""
        return () if self.split is None else self.split.others(self.pool.name)


class Catalog:
    """All models of this gateway, with what was learned of them `before`. `estimates` has each one's by all its names.

    `by_prefix` has all names of the models with pools that choose by how a prompt begins. `chance` divides the calls of
    those with several pools.
    """

    def __init__(
        self,
        entries: Mapping[str, ModelEntry],
        pools: Mapping[str, Pool],
        chance: random.Random,
        *,
        before: "Catalog | None" = None,
    ) -> None:
        known = {} if before is None else before._models  # noqa: SLF001 of the same class
        self._models: dict[str, Model] = {
            name: _model(name, entry, pools, chance, before=known.get(name)) for name, entry in entries.items()
        }
        self._by_name = dict(self._models)
        for model in self._models.values():
            self._by_name.update(dict.fromkeys(model.entry.aliases, model))
        self.estimates = {name: model.estimate for name, model in self._by_name.items()}
        self.by_prefix = frozenset(
            name
            for name, model in self._by_name.items()
            if model.pool.by_prefix or any(other.pool.by_prefix for other in model.others)
        )

    def resolve(self, name: str, principal: Principal) -> Model:
        """Return the model that `name` means to this principal, at the pool that has the largest share of its calls.

        Raises:
            ModelNotFound: no such model, or it may not use it; the two look the same.
        """
        model = self._by_name.get(name)
        if model is None or not principal.may_use(model.name):
            shown = name if len(name) <= 100 else f"{name[:100]}..."  # noqa: PLR2004 an excerpt
            raise ModelNotFound(f"The model {shown!r} does not exist or you do not have access to it.", param="model")
        return model

    def route(self, call: Call, principal: Principal) -> Model:
        """Return the model that `call` names, at the pool that this call is for.

        Raises:
            ModelNotFound: as `resolve`.
        """
        model = self.resolve(call.model, principal)
        return model if model.split is None else model.split.choose(call.prefixes)

    def elsewhere(self, model: Model, call: Call, principal: Principal) -> Iterator[Model]:
        """Yield where `call` may go, in order, if `model` at this pool cannot answer it.

        To its other pools; then to those of its fallbacks that the principal may use and that have what the call asks
        for. Their own fallbacks are not followed.
        """
        yield from model.others
        for name in model.entry.fallbacks:
            fallback = self._models[name]
            if not principal.may_use(name) or not fits(call, fallback.entry):
                continue
            first = fallback if fallback.split is None else fallback.split.choose(call.prefixes)
            yield first
            yield from first.others

    def bytes_per_token(self) -> Iterable[tuple[str, float]]:
        """Return by how many bytes of a body each model, by its name, reserves a token now; from any thread."""
        return [(name, model.estimate.bytes_per_token) for name, model in self._models.items()]

    def permitted(self, principal: Principal) -> Iterable[Model]:
        """Return the models that this principal may use, in the order of config.yaml."""
        return [model for model in self._models.values() if principal.may_use(model.name)]


def _model(
    name: str, entry: ModelEntry, pools: Mapping[str, Pool], chance: random.Random, *, before: Model | None
) -> Model:
    """Return the model at the pool with the largest share."""
    estimate = Estimate(entry.media_tokens)
    if before is not None and _alike(before.entry, entry):
        estimate.bytes_per_token = before.estimate.bytes_per_token
    told = f"x-gateway-model: {quote(name, safe=_PLAIN, errors='surrogatepass')}\r\n"

    def at(pool: str, split: Split[Model] | None) -> Model:
        timeouts = pools[pool].timeouts.changed(entry.timeouts)
        return Model(name, entry, pools[pool], timeouts, estimate, told, split)

    split = Split(entry.pool, at, chance)
    return split.parts[0] if len(split.parts) > 1 else at(split.parts[0].pool.name, None)


def _alike(before: ModelEntry, entry: ModelEntry) -> bool:
    """Whether it is likely that prompts are still split into tokens as they were."""
    return before.served_name == entry.served_name and not before.pool.keys().isdisjoint(entry.pool)
