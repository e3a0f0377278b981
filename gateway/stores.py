"""`limits.store` -> where counts are kept, and what operators set at runtime; and how the levels of limits are read."""

from pathlib import Path

from gateway import config
from gateway.admission.journal.journal import Journal
from gateway.admission.ledger.memory import MemoryLedger
from gateway.admission.memory import MemoryStore
from gateway.admission.overrides.applied import ReadUsed
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.settings import RedisSettings
from gateway.admission.redis.store import RedisStore
from gateway.admission.redis.two_steps import InTwoSteps
from gateway.admission.settings.memory import MemorySettings
from gateway.admission.settings.settings import Settings
from gateway.admission.store import Store
from gateway.clock import Clock
from gateway.config import store_url
from gateway.telemetry.metrics import Metrics


def counts(limits: config.Limits, clock: Clock, metrics: Metrics) -> Store:
    """Return the store of the counts, which `metrics` are told of.

    Raises:
        JournalUnusable: `limits.journal` names no directory that a journal can be kept in.
    """
    if limits.store == "memory":
        return MemoryStore(clock, lease_s=limits.lease, ledger=MemoryLedger(retention_s=limits.ledger_retention))
    store = RedisStore(
        limits.store,
        clock,
        timeout_s=limits.store_timeout,
        lease_s=limits.lease,
        retention_s=limits.ledger_retention,
        observer=metrics,
        events=limits.events,
        backlog=None if limits.journal is None else _journal(limits.journal, clock, metrics),
    )
    return InTwoSteps(store) if store_url.parse(limits.store).topology == "cluster" else store


def settings(store: str, what: str) -> Settings:
    """Return where settings of the kind `what` are kept."""
    return MemorySettings() if store == "memory" else RedisSettings(store, what)


def levels(url: str, store: Store) -> ReadUsed:
    """Return what reads how much of limits is used."""
    return store.used if isinstance(store, MemoryStore) else RedisLevels(url).used


def _journal(directory: str, clock: Clock, metrics: Metrics) -> Journal:
    journal = Journal(Path(directory), clock, dropped=metrics.settlement_dropped)
    metrics.watch_journal(journal.__len__)
    return journal
