"""What limits mean, said once more and as simply as can be: exact fractions, one dictionary a kind of count.

A model to hold stores against. It is told which scripts a store ran, when and for which call, and what each call was
meant to end as; it knows nothing of how a store keeps its counts.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from gateway.calls.usage import Usage

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
# How long a call, its refusal, and the end of one that nobody saw begin are known.
CALL_US, REFUSAL_US, END_US = 7 * DAY_US, 10 * SECOND_US, 7 * DAY_US

Does = Literal["reserve", "settle", "renew"]
State = Literal["reserved", "refused", "settled"]
Place = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A rule as the config has it; `window_ms` is None for calls at once, `models` what names of models begin with."""

    name: str
    per: tuple[str, ...]
    measure: Literal["requests", "tokens", "concurrent"]
    figure: int
    window_ms: int | Literal["day", "month"] | None = None
    count: str = "total"
    shadow: bool = False
    models: str = ""
    tenants: tuple[tuple[str, int], ...] = ()  # whose figure is another

    def config(self) -> dict[str, Any]:
        """Return the rule as `limits.plans` writes it."""
        rule: dict[str, Any] = {"name": self.name, "per": list(self.per), self.measure: self.figure}
        if self.window_ms is not None:
            rule["window"] = f"{self.window_ms}ms" if isinstance(self.window_ms, int) else self.window_ms
        if self.measure == "tokens":
            rule["count"] = self.count
        if self.models:
            rule["models"] = [f"{self.models}*"]
        return rule | {"shadow": self.shadow}


class Who(NamedTuple):
    """Who calls which model."""

    tenant: str
    key: str
    model: str


@dataclass
class Asked:
    """One call: what it asks for, and what it is meant to end as, which only its settlement looks at."""

    who: Who
    input: int
    output: int
    usage: Usage | None = None

    def cost(self, rule: Rule) -> int:
        return _figure(rule, self.input, self.output)


class Step(NamedTuple):
    """A script that a store ran: for which call, and at what time of the store's. `unseen`: nobody saw it begin."""

    does: Does
    call: str
    now_us: int
    unseen: bool = False


@dataclass
class Bucket:
    """Drains evenly, and without steps."""

    level: Fraction = Fraction(0)
    at_us: int = 0

    def at(self, now_us: int, rate: Fraction) -> Fraction:
        self.level = max(self.level - (now_us - self.at_us) * rate, Fraction(0))
        self.at_us = now_us
        return self.level


@dataclass
class Model:
    """All counts and the ledger, at the time of the last step that was taken."""

    rules: Sequence[Rule]
    lease_us: int
    calls: dict[str, Asked] = field(default_factory=dict)
    books: Counter[tuple[str, ...]] = field(default_factory=Counter)
    admitted: dict[str, bool] = field(default_factory=dict)  # by the last reservation of a call
    settled: set[str] = field(default_factory=set)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)  # calls that were booked, and as what
    _buckets: dict[Place, Bucket] = field(default_factory=dict)
    _periods: Counter[Place] = field(default_factory=Counter)
    _slots: dict[Place, dict[str, int]] = field(default_factory=dict)
    _records: dict[str, tuple[State, int, int]] = field(default_factory=dict)  # since when, and until when
    _charged: dict[str, dict[Rule, int]] = field(default_factory=dict)

    def applying(self, who: Who) -> list[Rule]:
        return [rule for rule in self.rules if who.model.startswith(rule.models)]

    def take(self, step: Step) -> None:
        {"reserve": self._reserve, "settle": self._settle, "renew": self._renew}[step.does](step)

    def used(self, rule: Rule, who: Who, now_us: int) -> int:
        """Return what is used of a rule, in whole units: what has drained of one in part is still used."""
        place = _place(rule, who)
        if rule.measure == "concurrent":
            slots = self._slots.setdefault(place, {})
            self._slots[place] = {call: until for call, until in slots.items() if until > now_us}
            return len(self._slots[place])
        if isinstance(rule.window_ms, int):
            return math.ceil(self._buckets.setdefault(place, Bucket()).at(now_us, _rate(rule, who)))
        return self._periods[*place, _period(rule, now_us)]

    def _reserve(self, step: Step) -> None:
        call, now_us, asked = step.call, step.now_us, self.calls[step.call]
        state = self._state(call, now_us)
        if state in ("reserved", "settled"):
            self.admitted[call] = True
            return
        over = {
            rule: self.used(rule, asked.who, now_us) + asked.cost(rule) > _of(rule, asked.who)
            for rule in self.applying(asked.who)
        }
        self.admitted[call] = not any(over[rule] for rule in over if not rule.shadow)
        if not self.admitted[call]:
            if state is None:
                self._records[call] = "refused", now_us, now_us + REFUSAL_US
                self._book(asked, now_us, refused=1)
                self.told[call, "refused"] += 1
            return
        self._charged[call] = {rule: asked.cost(rule) for rule in over if not over[rule]}
        for rule, cost in self._charged[call].items():
            if rule.measure == "concurrent":
                self._slots[_place(rule, asked.who)][call] = now_us + self.lease_us
            else:
                self._add(rule, asked.who, now_us, cost)
            assert self.used(rule, asked.who, now_us) <= _of(rule, asked.who), "a reservation never goes over"
        self._records[call] = "reserved", now_us, now_us + CALL_US

    def _settle(self, step: Step) -> None:
        call, now_us, asked = step.call, step.now_us, self.calls[step.call]
        self.settled.add(call)
        state, since_us = self._state(call, now_us), self._records.get(call, ("", 0, 0))[1]
        self._records.pop(call, None)
        if step.unseen:
            self._records[call] = "settled", now_us, now_us + END_US
        uncounted = state in (None, "refused") and step.unseen and asked.usage is not None
        if state != "reserved" and not uncounted:
            return
        charged = self._charged.pop(call, {}) if state == "reserved" else dict.fromkeys(self.applying(asked.who), 0)
        for rule, cost in charged.items():
            if step.unseen and rule.shadow:
                continue  # let go as it is: nobody knows whether it was charged
            if rule.measure == "concurrent":
                self._slots[_place(rule, asked.who)].pop(call, None)
                continue
            same = state != "reserved" or _period(rule, since_us) == _period(rule, now_us)
            if same:
                self._add(rule, asked.who, now_us, _used(rule, asked.usage) - cost)
        if asked.usage is not None:
            self.told[call, "settled"] += 1
            usage = asked.usage
            self._book(
                asked,
                now_us,
                calls=1,
                prompt_tokens=usage.prompt,
                completion_tokens=usage.completion,
                cached_tokens=usage.cached,
                reasoning_tokens=usage.reasoning,
                estimated_tokens=usage.prompt + usage.completion if usage.source == "estimated" else 0,
            )

    def _renew(self, step: Step) -> None:
        if self._state(step.call, step.now_us) != "reserved":
            return
        _, since_us, _ = self._records[step.call]
        self._records[step.call] = "reserved", since_us, step.now_us + CALL_US
        for rule in self._charged[step.call]:
            if rule.measure == "concurrent" and not (step.unseen and rule.shadow):
                slots = self._slots.setdefault(_place(rule, self.calls[step.call].who), {})
                slots[step.call] = step.now_us + self.lease_us

    def _state(self, call: str, now_us: int) -> State | None:
        state, _, until_us = self._records.get(call, (None, 0, 0))
        return state if until_us > now_us else None

    def _add(self, rule: Rule, who: Who, now_us: int, figure: int) -> None:
        place = _place(rule, who)
        if isinstance(rule.window_ms, int):
            bucket = self._buckets.setdefault(place, Bucket())
            bucket.level = max(bucket.at(now_us, _rate(rule, who)) + figure, Fraction(0))
        else:
            self._periods[*place, _period(rule, now_us)] += figure
            assert self._periods[*place, _period(rule, now_us)] >= 0, "nothing is given back that was not taken"

    def _book(self, asked: Asked, now_us: int, **figures: int) -> None:
        for counter, figure in figures.items():
            self.books[_period(None, now_us), *asked.who, counter] += figure


def _figure(rule: Rule, tokens_in: int, tokens_out: int) -> int:
    if rule.measure != "tokens":
        return 1
    return {"total": tokens_in + tokens_out, "input": tokens_in, "output": tokens_out}[rule.count]


def _used(rule: Rule, usage: Usage | None) -> int:
    return 0 if usage is None else _figure(rule, usage.prompt, usage.completion)


def _of(rule: Rule, who: Who) -> int:
    return dict(rule.tenants).get(who.tenant, rule.figure)


def _rate(rule: Rule, who: Who) -> Fraction:
    """Return how much drains in a microsecond."""
    assert isinstance(rule.window_ms, int)
    return Fraction(_of(rule, who), rule.window_ms * 1000)


def _place(rule: Rule, who: Who) -> Place:
    return rule.name, *[getattr(who, name) for name in sorted({*rule.per, *(["tenant"] if "key" in rule.per else [])})]


def _period(rule: Rule | None, now_us: int) -> str:
    """Return the UTC day or month; the day where there is no rule, and nothing where a rule knows neither."""
    window = "day" if rule is None else rule.window_ms
    if window not in ("day", "month"):
        return ""
    day = datetime.fromtimestamp(now_us // SECOND_US, UTC)
    return f"{day:%Y-%m-%d}" if window == "day" else f"{day:%Y-%m}"
