"""One finished call in, its cell out: what is counted per endpoint, model, tenant, status and ending, found at once.

A cell keeps the call's bounded labels and the numbers they lead to, so that labels are worked out once, not per call.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from gateway.calls.usage import Usage
from gateway.telemetry.record import CallRecord
from gateway.telemetry.series import Histogram, Histograms, Labels
from gateway.telemetry.tenants import TenantLabels

UNKNOWN = "unknown"


class Tokens:
    """What the calls of one model and tenant used, as told by one source."""

    __slots__ = ("cached", "completion", "prompt", "reasoning")

    def __init__(self) -> None:
        self.prompt = self.completion = self.cached = self.reasoning = 0

    def add(self, usage: Usage) -> None:
        """Add one call's usage."""
        prompt, completion, cached, reasoning, _ = usage
        self.prompt += prompt
        self.completion += completion
        self.cached += cached
        self.reasoning += reasoning


class Cell:
    """What the calls of one kind are counted in; the histograms and `tokens` are shared with other kinds."""

    __slots__ = ("calls", "duration", "labels", "model", "overhead", "tokens")

    def __init__(
        self,
        labels: Labels,
        model: str,
        *,
        duration: Histogram,
        overhead: Histogram,
        tokens: defaultdict[str, Tokens],
    ) -> None:
        self.calls = 0
        self.labels = labels
        self.model = model
        self.duration = duration
        self.overhead = overhead
        self.tokens = tokens


class Cells:
    """The cells of one process. Their number is bounded: a name that has no label of its own shares a cell.

    `models` are the labels of names that have one now.
    """

    def __init__(
        self, models: Mapping[str | None, str], tenants: TenantLabels, *, durations: Histograms, overheads: Histograms
    ) -> None:
        self._models = models
        self._tenants = tenants
        self._durations = durations
        self._overheads = overheads
        self._cells: dict[Labels, Cell] = {}
        self._found: dict[tuple[object, ...], Cell] = {}  # the same by what a record says, None included
        self._tokens: defaultdict[tuple[str, str], defaultdict[str, Tokens]] = defaultdict(lambda: defaultdict(Tokens))

    def of(self, call: CallRecord) -> Cell:
        """Return the call's cell."""
        found = self._found.get((call.endpoint, call.model, call.tenant, call.status, call.ending))
        return found or self._bounded(call)

    def requests(self) -> Iterator[tuple[Labels, int]]:
        """Yield the labels and number of `gateway_requests_total`; from any thread."""
        for cell in dict(self._cells).values():
            yield cell.labels, cell.calls

    def tokens(self) -> Iterator[tuple[Labels, int]]:
        """Yield the labels and number of `gateway_tokens_total`; from any thread."""
        for model_and_tenant, sources in dict(self._tokens).items():
            for source, used in dict(sources).items():
                yield (*model_and_tenant, "prompt", source), used.prompt
                yield (*model_and_tenant, "completion", source), used.completion
                if used.cached:
                    yield (*model_and_tenant, "cached", source), used.cached
                if used.reasoning:
                    yield (*model_and_tenant, "reasoning", source), used.reasoning

    def forget(self, models: Collection[str], tenants: Collection[str]) -> None:
        """Show no more what was counted of these, which have no label any more."""
        kept = {
            labels: cell for labels, cell in self._cells.items() if labels[1] not in models and labels[2] not in tenants
        }
        self._cells = kept
        self._found = {names: cell for names, cell in self._found.items() if cell.labels in kept}
        for model, tenant in [one for one in self._tokens if one[0] in models or one[1] in tenants]:
            del self._tokens[model, tenant]

    def _bounded(self, call: CallRecord) -> Cell:
        """Return the cell of a call that is the first of its kind, or whose names have no label of their own."""
        labels = (
            call.endpoint,
            self._models.get(call.model, UNKNOWN),
            self._tenants.label(call.tenant),
            call.status,
            call.ending,
        )
        if labels not in self._cells:
            self._cells[labels] = self._new(labels)
        # None stays None: a tenant named `unknown` may be counted as `other`, and is not to be found as nobody.
        model = call.model if call.model in self._models else None
        tenant = None if call.tenant is None else self._tenants.label(call.tenant)
        self._found[call.endpoint, model, tenant, call.status, call.ending] = self._cells[labels]
        return self._cells[labels]

    def _new(self, labels: tuple[str, str, str, int, str]) -> Cell:
        endpoint, model, tenant, _, _ = labels
        return Cell(
            labels,
            model,
            duration=self._durations[endpoint, model],
            overhead=self._overheads[endpoint,],
            tokens=self._tokens[model, tenant],
        )
