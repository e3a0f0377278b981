"""What calls, stores, engines and key sets did, as Prometheus metrics; docs/metrics.md lists them all.

Labels hold only configured names and words of ours, never a client's or an engine's text. Nothing here does I/O.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from gateway.admission.observer import Decision
from gateway.telemetry import buckets, build
from gateway.telemetry.cells import UNKNOWN, Cells
from gateway.telemetry.models import ModelNames
from gateway.telemetry.record import CallRecord
from gateway.telemetry.reloads import Reloads
from gateway.telemetry.replicas import ReplicaCollector, ReplicaState
from gateway.telemetry.series import Counts, Histograms, Labels, Levels, Scraped, add, forget
from gateway.telemetry.settings import SettingsCollector, SettingsState
from gateway.telemetry.tenants import TenantLabels


class Metrics:
    """The gateway's metrics, in `registry`. `models` are the configured names; any other is counted as `unknown`."""

    def __init__(
        self, models: Collection[str], tenants: TenantLabels, *, registry: CollectorRegistry | None = None
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._models = ModelNames(models)
        self._tenants = tenants
        self._create_call_metrics()
        self._create_part_metrics()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def configure(self, models: Collection[str], tenants: Iterable[str], *, max_tenants: int) -> None:
        """Go by these names from now on. What was counted of models and tenants that lose their label is dropped."""
        busy = [str(label) for (label,), calls in self._in_flight.numbers() if calls]
        gone = self._models.configure(models, busy=busy)
        self._cells.forget(gone, self._tenants.configure(tenants, max_tenants=max_tenants))
        for counts in (self._usage_missing, self._broken, self._refusals):
            forget(counts, 0, gone)
        for levels in (self._in_flight, self._streams):
            forget(levels, 0, gone)
        for histograms in (self._durations, self._first_byte, self._output_token):
            forget(histograms, 1, gone)

    def keep_attempts_of(self, replicas: Container[tuple[str, str]]) -> None:
        """Drop what was counted of replicas other than these, each a pool and a replica."""
        for labels in [one for one in self._attempts if (str(one[0]), str(one[1])) not in replicas]:
            del self._attempts[labels]

    def _create_call_metrics(self) -> None:
        by_model = ("endpoint", "model")
        self._durations = durations = Histograms(buckets.DURATION_S)
        overheads = Histograms(buckets.OVERHEAD_S)
        self._cells = Cells(self._models, self._tenants, durations=durations, overheads=overheads)
        self._show_counter(
            "gateway_requests_total",
            "Finished calls; status as sent, 499 where the client left before.",
            ("endpoint", "model", "tenant", "status", "outcome"),
            self._cells.requests,
        )
        self._show_counter(
            "gateway_tokens_total",
            "Tokens used. Cached ones are part of prompt, reasoning ones part of completion.",
            ("model", "tenant", "kind", "source"),
            self._cells.tokens,
        )
        self._show_histogram(
            "gateway_request_duration_seconds",
            "From the head of a call to the last byte of its answer, refusals included.",
            by_model,
            durations,
        )
        self._first_byte = self._histogram(
            "gateway_first_byte_seconds",
            "From the head of a streamed call to the first byte of its answer.",
            by_model,
            buckets.FIRST_BYTE_S,
        )
        self._output_token = self._histogram(
            "gateway_output_token_seconds",
            "Mean time between output tokens of a stream that ended well and whose engine reported usage.",
            by_model,
            buckets.OUTPUT_TOKEN_S,
        )
        self._show_histogram(
            "gateway_overhead_seconds",
            "Our own time before the engine is asked: identity, parsing, limits, choice of a replica, without waits.",
            ("endpoint",),
            overheads,
        )
        self._in_flight = self._levels("gateway_requests_in_flight", "Calls that are under way now.", ("model",))
        self._streams = self._levels("gateway_streams_open", "Streams that are being relayed now.", ("model",))
        self._usage_missing = self._counter(
            "gateway_usage_missing_total", "Answers that ended without the engine's own usage.", ("model", "reason")
        )
        self._broken = self._counter(
            "gateway_answers_broken_total",
            "Answers that were ended early once they had begun, by what ended them.",
            ("model", "reason"),
        )
        self._refusals = self._counter(
            "gateway_refusals_total",
            "Calls that got a refusal in place of an answer, by its code.",
            ("model", "code"),
        )

    def _create_part_metrics(self) -> None:
        self._decisions: Counts = defaultdict(int)
        self._admitted: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._show_counter(
            "gateway_limit_decisions_total",
            "What each rule said to a call; shadow: it would have refused.",
            ("rule", "decision"),
            self._decided,
        )
        self._store_time = self._histogram(
            "gateway_store_seconds", "Round trips to the limit store.", ("operation",), buckets.STORE_S
        )
        self._store_failures = self._counter(
            "gateway_store_failures_total", "Round trips to the limit store that failed or timed out.", ("operation",)
        )
        self._settlements_dropped = self._counter(
            "gateway_settlements_dropped_total",
            "Settlements that will never reach the limit store; their calls stay charged as reserved.",
            (),
        )
        self._journal_pending: Callable[[], int] = int
        self._show_gauge(
            "gateway_journal_pending",
            "Settlements in the journal that the limit store has not taken yet.",
            (),
            lambda: [((), self._journal_pending())],
        )
        self._plans_unknown = self._counter(
            "gateway_plans_unknown_total",
            "Calls whose token claimed a plan that does not exist; the default plan held.",
            (),
        )
        self._settings_failures = self._counter(
            "gateway_settings_failures_total",
            "Tries to ask the limit store for settings that failed.",
            ("settings",),
        )
        self._fallbacks = self._counter(
            "gateway_fallbacks_total",
            "Calls of a model that were turned to a fallback, because its own pools could not answer them.",
            ("model", "fallback", "result"),
        )
        self._attempts = self._counter(
            "gateway_upstream_attempts_total",
            "Tries to have a call answered by a replica, by their result.",
            ("pool", "replica", "result"),
        )
        self._retries_refused = self._counter(
            "gateway_retries_refused_total",
            "Calls that were not tried again: the pool's retries were used up.",
            ("pool",),
        )
        self._discovery = self._counter(
            "gateway_discovery_refreshes_total",
            "What a pool's source of replicas said, at each word of it, or that it could not.",
            ("pool", "result"),
        )
        self._waiting = self._histogram(
            "gateway_waiting_seconds",
            "How long calls waited for a replica of their pool to have room, however that ended.",
            ("pool", "priority"),
            buckets.WAITING_S,
        )
        self._waiting_refused = self._counter(
            "gateway_waiting_refused_total",
            "Calls that had to wait for a replica and were refused, by why.",
            ("pool", "reason"),
        )
        self._auth_failures = self._counter(
            "gateway_auth_failures_total", "Calls whose token was missing or not accepted.", ("reason",)
        )
        self._key_sets = self._counter(
            "gateway_key_set_refreshes_total", "Fetches of an issuer's key set.", ("issuer", "result")
        )
        self._identity = self._histogram(
            "gateway_identity_seconds",
            "Questions to an issuer about a token, exchanges and introspections; their wait for a turn included.",
            ("issuer", "result"),
            buckets.IDENTITY_S,
        )
        self._background_failures = self._counter(
            "gateway_background_failures_total",
            "Failures outside of calls that nothing is made for; the log says what each was.",
            (),
        )
        self._lag = self._histogram(
            "gateway_event_loop_lag_seconds",
            "How much later than asked a timer fired, sampled twice a second.",
            (),
            buckets.LOOP_LAG_S,
        )
        self.reloads = Reloads(self.registry)
        runs, meaning = build.labels(), "Always 1; the labels say what runs."
        self._show_gauge("gateway_build_info", meaning, build.NAMES, lambda: [(runs, 1)])

    def record(self, call: CallRecord) -> None:
        """Count one finished call."""
        cell, usage, overhead_s = self._cells.of(call), call.usage, call.overhead_s
        cell.calls += 1
        cell.duration.observe(call.duration_s)
        if overhead_s is not None:
            cell.overhead.observe(overhead_s)
        if usage is not None:
            cell.tokens[usage.source].add(usage)
        if call.stream and call.first_byte_s is not None:
            self._first_byte[call.endpoint, cell.model].observe(call.first_byte_s)
            self._observe_output_token(call, cell.model, first_byte_s=call.first_byte_s)
        if call.usage_missing is not None:
            self._usage_missing[cell.model, call.usage_missing] += 1
        if call.broken_by is not None:
            self._broken[cell.model, call.broken_by] += 1
        if call.error_code is not None:
            self._refusals[cell.model, call.error_code] += 1

    def call_started(self, model: str | None) -> Callable[[], None]:
        """Count a call as under way; what is returned is to be called when it has ended."""
        return self._in_flight.enter((self._models.get(model, UNKNOWN),))

    def stream_opened(self, model: str | None) -> Callable[[], None]:
        """Count a stream as open; what is returned is to be called when it is not any more."""
        return self._streams.enter((self._models.get(model, UNKNOWN),))

    def limit_decided(self, rule: str, decision: Decision) -> None:
        """Count what a rule, by its configured name, said to a call."""
        self._decisions[rule, decision] += 1

    def limits_admitted(self, rules: tuple[str, ...]) -> None:
        """Count that all of these rules let one call through; costs what one `limit_decided` does."""
        self._admitted[rules] += 1

    def store_answered(self, operation: str, seconds: float) -> None:
        """Observe one round trip to the store; `operation` is the store's own word for it."""
        self._store_time[operation,].observe(seconds)

    def store_failed(self, operation: str) -> None:
        """Count a round trip to the store that failed or timed out."""
        self._store_failures[operation,] += 1

    def plan_unknown(self) -> None:
        """Count a token that claimed a plan which does not exist."""
        self._plans_unknown[()] += 1

    def settlement_dropped(self) -> None:
        """Count a settlement that will never reach the store."""
        self._settlements_dropped[()] += 1

    def attempt(self, pool: str, replica: str, *, result: str) -> None:
        """Count a try on a replica (`host:port`); `result` is one of routing's words, never an engine's text."""
        self._attempts[pool, replica, result] += 1

    def retry_refused(self, pool: str) -> None:
        """Count a call that was not tried again because its pool's retries are used up."""
        self._retries_refused[pool,] += 1

    def fallback(self, model: str, fallback: str, *, result: str) -> None:
        """Count that a call of `model` was turned to a fallback, both configured names; `result` is a word of ours."""
        self._fallbacks[model, fallback, result] += 1

    def waited(self, pool: str, priority: str, seconds: float) -> None:
        """Observe how long a call waited for a replica to have room."""
        self._waiting[pool, priority].observe(seconds)

    def waiting_refused(self, pool: str, reason: str) -> None:
        """Count a call that had to wait and got no replica; `reason` is a word of ours."""
        self._waiting_refused[pool, reason] += 1

    def watch_waiting(self, read: Callable[[], Iterable[tuple[Labels, int]]]) -> None:
        """Show, at each scrape, how many calls `read` then says wait, by pool and class; `read` runs in a thread."""
        meaning = "Calls that wait for a replica of their pool to have room, by the class of their plan."
        self._show_gauge("gateway_waiting_calls", meaning, ("pool", "priority"), read)

    def watch_replicas(self, read: Callable[[], Iterable[ReplicaState]]) -> None:
        """Show, at each scrape, what `read` then says of the replicas. To be called once; `read` runs in a thread."""
        self.registry.register(ReplicaCollector(read))

    def discovery_refresh(self, pool: str, result: str) -> None:
        """Count one refresh of a pool's replicas; `result` is one of discovery's words."""
        self._discovery[pool, result] += 1

    def watch_discovery(self, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Show, at each scrape, how old `read` then says what each pool's source said is; `read` runs in a thread."""
        self._show_ages(
            "gateway_discovery_age_seconds",
            "Since the pool's source of replicas last said what there is, or since it was first asked.",
            "pool",
            read,
        )

    def watch_journal(self, read: Callable[[], int]) -> None:
        """Show, at each scrape, how many settlements `read` then says wait in the journal; `read` runs in a thread."""
        self._journal_pending = read

    def settings_failed(self, settings: str) -> None:
        """Count a try to ask the store for `settings`, a name of ours, that failed."""
        self._settings_failures[settings,] += 1

    def watch_settings(self, read: Callable[[], Iterable[SettingsState]]) -> None:
        """Show, at each scrape, what `read` then says of settings. To be called once; `read` runs in a thread."""
        self.registry.register(SettingsCollector(read))

    def watch_estimates(self, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Show, at each scrape, what `read` then says of each model. To be called once; `read` runs in a thread."""
        meaning = "Bytes of a body for which a token of its prompt is reserved, as learned from the model's calls."
        self._show_gauge("gateway_bytes_per_token", meaning, ("model",), lambda: [((m,), n) for m, n in read()])

    def auth_failure(self, reason: str) -> None:
        """Count a call that was not authenticated; `reason` is one of identity's words, never the token's text."""
        self._auth_failures[reason,] += 1

    def key_set_refresh(self, issuer: str, result: str) -> None:
        """Count a fetch of a configured issuer's key set."""
        self._key_sets[issuer, result] += 1

    def identity_asked(self, issuer: str, result: str, seconds: float) -> None:
        """Observe one question to a configured issuer about a token."""
        self._identity[issuer, result].observe(seconds)

    def watch_key_sets(self, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Show, at each scrape, how old `read` then says each issuer's key set is; `read` runs in a thread."""
        self._show_ages(
            "gateway_key_set_age_seconds",
            "Since the issuer's key set was last fetched well, or since the start.",
            "issuer",
            read,
        )

    def background_failed(self) -> None:
        """Count what failed outside of calls, and was foreseen by nobody."""
        self._background_failures[()] += 1

    def event_loop_lag(self, seconds: float) -> None:
        """Observe how much later than asked a timer fired."""
        self._lag[()].observe(seconds)

    def _decided(self) -> Iterable[tuple[Labels, int]]:
        decided = self._decisions.copy()
        for rules, calls in dict(self._admitted).items():
            for rule in rules:
                decided[rule, "admitted"] += calls
        return decided.items()

    def _observe_output_token(self, call: CallRecord, model: str, *, first_byte_s: float) -> None:
        usage = call.usage
        # An estimate counts events, and one event may hold several tokens.
        if call.ending == "ok" and usage is not None and usage.source == "engine" and usage.completion > 1:
            seconds = (call.duration_s - first_byte_s) / (usage.completion - 1)
            self._output_token[call.endpoint, model].observe(seconds)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counts:
        counts: Counts = defaultdict(int)
        if not labels:
            counts[()] = 0  # shown from the start, so that the first is an increase
        self._show_counter(name, meaning, labels, lambda: dict(counts).items())
        return counts

    def _levels(self, name: str, meaning: str, labels: tuple[str, ...]) -> Levels:
        levels = Levels()
        self._show_gauge(name, meaning, labels, levels.numbers)
        return levels

    def _histogram(self, name: str, meaning: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Histograms:
        histograms = Histograms(bounds)
        self._show_histogram(name, meaning, labels, histograms)
        return histograms

    def _show_ages(self, name: str, meaning: str, label: str, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._show_gauge(name, meaning, (label,), lambda: (((one,), age) for one, age in read()))

    def _show_gauge(
        self, name: str, meaning: str, labels: tuple[str, ...], read: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        empty = partial(GaugeMetricFamily, name, meaning, labels=labels)
        self.registry.register(Scraped(empty, lambda family: add(family, read())))

    def _show_counter(
        self, name: str, meaning: str, labels: tuple[str, ...], read: Callable[[], Iterable[tuple[Labels, int]]]
    ) -> None:
        empty = partial(CounterMetricFamily, name, meaning, labels=labels)
        self.registry.register(Scraped(empty, lambda family: add(family, read())))

    def _show_histogram(self, name: str, meaning: str, labels: tuple[str, ...], histograms: Histograms) -> None:
        empty = partial(HistogramMetricFamily, name, meaning, labels=labels)
        self.registry.register(Scraped(empty, histograms.fill))
