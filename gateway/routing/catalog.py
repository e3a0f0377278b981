"""Model names and aliases -> `Model`: what clients may name, and the pool that serves it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.calls.estimate import Estimate
from gateway.config import ModelEntry, Timeouts
from gateway.errors import ModelNotFound
from gateway.identity.principal import Principal
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica


@dataclass(frozen=True, slots=True)
class Model:
    """A configured model: its name, its entry in config.yaml, its pool, and the timeouts that both make together.

    `estimate` is what was learned of its prompts.
    """

    name: str
    entry: ModelEntry
    pool: Pool
    timeouts: Timeouts
    estimate: Estimate

    def name_at(self, replica: Replica) -> str:
        """What the engine on this replica calls the model."""
        return replica.served_name or self.entry.served_name or self.name


class Catalog:
    """All models of this gateway, with what was learned of them `before`. `estimates` has each one's by all its names.

    `by_prefix` has all names of the models whose pools choose by how a prompt begins.
    """

    def __init__(
        self, entries: Mapping[str, ModelEntry], pools: Mapping[str, Pool], *, before: "Catalog | None" = None
    ) -> None:
        known = {} if before is None else before._models  # noqa: SLF001 of the same class
        self._models: dict[str, Model] = {
            name: _model(name, entry, pools[entry.pool], before=known.get(name)) for name, entry in entries.items()
        }
        self._by_name = dict(self._models)
        for model in self._models.values():
            self._by_name.update(dict.fromkeys(model.entry.aliases, model))
        self.estimates = {name: model.estimate for name, model in self._by_name.items()}
        self.by_prefix = frozenset(name for name, model in self._by_name.items() if model.pool.by_prefix)

    def resolve(self, name: str, principal: Principal) -> Model:
        """Return the model that `name` means to this principal.

        Raises:
            ModelNotFound: no such model, or it may not use it; the two look the same.
        """
        model = self._by_name.get(name)
        if model is None or not principal.may_use(model.name):
            shown = name if len(name) <= 100 else f"{name[:100]}..."  # noqa: PLR2004 an excerpt
            raise ModelNotFound(f"The model {shown!r} does not exist or you do not have access to it.", param="model")
        return model

    def bytes_per_token(self) -> Iterable[tuple[str, float]]:
        """Return by how many bytes of a body each model, by its name, reserves a token now; from any thread."""
        return [(name, model.estimate.bytes_per_token) for name, model in self._models.items()]

    def permitted(self, principal: Principal) -> Iterable[Model]:
        """Return the models that this principal may use, in the order of config.yaml."""
        return [model for model in self._models.values() if principal.may_use(model.name)]


def _model(name: str, entry: ModelEntry, pool: Pool, *, before: Model | None) -> Model:
    estimate = Estimate(entry.media_tokens)
    if before is not None and _tokenizer(before.entry) == _tokenizer(entry):
        estimate.bytes_per_token = before.estimate.bytes_per_token
    return Model(name, entry, pool, pool.timeouts.changed(entry.timeouts), estimate)


def _tokenizer(entry: ModelEntry) -> tuple[str | None, ...]:
    """Return by what it is known that prompts are still split as they were."""
    return entry.pool, entry.served_name
