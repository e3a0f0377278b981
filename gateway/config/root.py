"""config.yaml as a whole: every section, and the names by which they refer to each other."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.config.auth import Auth
from gateway.config.limits import Limits
from gateway.config.models import ModelEntry
from gateway.config.pools import PoolEntry
from gateway.config.requests import Requests
from gateway.config.section import Name, Section
from gateway.config.server import Admin, Server
from gateway.config.telemetry import Logging, Metrics


class Config(Section):
    """The whole of config.yaml."""

    server: Server = Server()
    admin: Admin = Admin()
    auth: Auth
    limits: Limits = Limits()
    models: Annotated[dict[Name, ModelEntry], Field(min_length=1)]
    pools: Annotated[dict[Name, PoolEntry], Field(min_length=1)]
    requests: Requests = Requests()
    metrics: Metrics = Metrics()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _workers_share(self) -> Self:
        if self.server.workers > 1 and self.limits.store == "memory":
            raise ValueError(
                f"limits.store: memory counts in one process, and server.workers makes {self.server.workers}, each of "
                "which would grant every limit; expected a shared store such as redis://host:6379/0, or workers: 1"
            )
        self.limits.divide_by(self.server.workers)
        return self

    @model_validator(mode="after")
    def _names_meet(self) -> Self:
        taken: dict[str, str] = {name: name for name in self.models}
        for name, model in self.models.items():
            for pool in model.pool:
                if pool not in self.pools:
                    raise ValueError(f"models.{name}.pool: there is no pool {pool!r}; pools: {', '.join(self.pools)}")
            for alias in model.aliases:
                if taken.setdefault(alias, name) != name or alias in self.models:
                    raise ValueError(f"models.{name}.aliases: {alias!r} already means {taken[alias]!r}")
        for name, model in self.models.items():
            self._fallbacks_are_others(name, model.fallbacks, taken)
        for one in self.auth.all_api_keys:
            if one.plan is not None and one.plan not in self.limits.plans:
                plans = ", ".join(self.limits.plans)
                raise ValueError(f"auth.api_keys: key {one.key!r}: there is no plan {one.plan!r}; plans: {plans}")
        return self

    def _fallbacks_are_others(self, name: str, fallbacks: tuple[str, ...], means: Mapping[str, str]) -> None:
        where = f"models.{name}.fallbacks"
        for position, fallback in enumerate(fallbacks):
            if fallback == name:
                raise ValueError(f"{where}: {fallback!r} is this model itself")
            if fallback in fallbacks[:position]:
                raise ValueError(f"{where}: {fallback!r} stands here twice")
            if fallback not in self.models:
                if fallback in means:
                    raise ValueError(f"{where}: {fallback!r} is an alias; name the model, {means[fallback]!r}")
                raise ValueError(f"{where}: there is no model {fallback!r}; models: {', '.join(self.models)}")
