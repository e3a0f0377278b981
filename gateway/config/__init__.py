"""config.yaml as frozen models: a file for each section, a class for each part. `file` reads it."""

from gateway.config.api_keys import API_KEY_PREFIX, ApiKey
from gateway.config.auth import (
    DEVELOPMENT_ISSUER,
    Algorithm,
    Auth,
    Exchange,
    Form,
    Introspection,
    Issuer,
    Remote,
    TenantPermissions,
)
from gateway.config.claims import Claims
from gateway.config.discovery import DiscoveryEntry, DnsEntry, FileEntry, KubernetesEntry
from gateway.config.limits import (
    KINDS,
    MAX_WINDOW_S,
    MIN_WINDOW_S,
    Events,
    KeyEntry,
    Limits,
    Priority,
    Rule,
    RuleOverride,
    TenantEntry,
    Weights,
)
from gateway.config.models import ModelEntry
from gateway.config.pools import BreakerEntry, Health, LoadEntry, PoolEntry, QueueEntry, ReplicaEntry, RetryBudget
from gateway.config.requests import BLOCKED_FIELDS, Requests
from gateway.config.root import Config
from gateway.config.server import Listen, Server
from gateway.config.telemetry import Logging
from gateway.config.timeouts import Timeouts, TimeoutsOverride

__all__ = [
    "API_KEY_PREFIX",
    "BLOCKED_FIELDS",
    "DEVELOPMENT_ISSUER",
    "KINDS",
    "MAX_WINDOW_S",
    "MIN_WINDOW_S",
    "Algorithm",
    "ApiKey",
    "Auth",
    "BreakerEntry",
    "Claims",
    "Config",
    "DiscoveryEntry",
    "DnsEntry",
    "Events",
    "Exchange",
    "FileEntry",
    "Form",
    "Health",
    "Introspection",
    "Issuer",
    "KeyEntry",
    "KubernetesEntry",
    "Limits",
    "Listen",
    "LoadEntry",
    "Logging",
    "ModelEntry",
    "PoolEntry",
    "Priority",
    "QueueEntry",
    "Remote",
    "ReplicaEntry",
    "Requests",
    "RetryBudget",
    "Rule",
    "RuleOverride",
    "Server",
    "TenantEntry",
    "TenantPermissions",
    "Timeouts",
    "TimeoutsOverride",
    "Weights",
]
