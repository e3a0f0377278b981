"""What the store counts when all is over: to the token what the ledger says, and what killed gateways left reserved."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations, product

from gateway import config
from gateway.admission.digest import digest
from gateway.admission.rules import Rulebook
from gateway.identity.principal import Principal
from tests.chaos.client import Seen
from tests.chaos.configs import SPARE
from tests.chaos.evidence import Evidence, Violation, violated
from tests.chaos.plans import BY_MODEL, BY_POOL, COUNTED, MODELS, TENANTS, TOGETHER

# At least, and at most.
Range = tuple[int, int]

_POOLS = [*(pool for pools in MODELS.values() for pool in pools), SPARE]

# Of reservations whose calls nobody can name; more are tried only as sums of few and of many.
_MOST_NAMELESS = 4


def judge(evidence: Evidence, limits: config.Limits) -> Iterator[Violation]:
    """Yield what is wrong with the counts of limits that are wide enough for everything."""
    if not evidence.one_month:
        return
    yield from violated("a quota counts the ledger and what was left reserved", _wrong(evidence, limits))
    yield from violated("a quota of a model counts who answered", _wrong_by_model(evidence, limits))
    yield from violated("what was generated is within what was reserved", _beyond(evidence))


def left_reserved(evidence: Evidence) -> list[Seen]:
    """Return the calls that the store knows as reserved, as far as their ids are known."""
    return [evidence.by_call_id[call_id] for call_id in evidence.leftovers if call_id in evidence.by_call_id]


def _wrong(evidence: Evidence, limits: config.Limits) -> Iterator[str]:
    booked = Counter[str]()
    for (tenant, _, _), figures in evidence.ledger.items():
        booked[tenant] += figures["prompt_tokens"] + figures["completion_tokens"]
    reserved: defaultdict[str, Range] = defaultdict(lambda: (0, 0))
    for seen in left_reserved(evidence):
        reserved[seen.call.tenant] = _add(reserved[seen.call.tenant], seen.call.reserved)
    nameless = _nameless(evidence)
    total = 0
    for tenant in TENANTS:
        counted = _counted(evidence, limits, tenant, COUNTED["name"])
        total += counted
        least, most = reserved[tenant]
        missing = counted - booked[tenant] - most, counted - booked[tenant] - least
        number, candidates = nameless.get(tenant, (0, ()))
        if not _sums_to(missing, number, [seen.call.reserved for seen in candidates]):
            yield (
                f"{tenant}: counted {counted}, booked {booked[tenant]}, left reserved {reserved[tenant]}: "
                f"{missing} more, by {number} reservations of {len(candidates)} calls without a name"
            )
    together = _counted(evidence, limits, TENANTS[0], TOGETHER["name"])
    least, most = _everybodys(evidence, booked.total()) if evidence.two_steps else (total, total)
    if not least <= together <= most:
        yield f"everybody: counted {together}, and not {least} to {most}"
    by_pool = sum(_counted(evidence, limits, TENANTS[0], BY_POOL["name"], pool=pool) for pool in _POOLS)
    if not evidence.two_steps and not together <= by_pool <= together + _most_of_further(evidence):
        yield f"everybody: counted {together}, and {by_pool} by pools"


def _wrong_by_model(evidence: Evidence, limits: config.Limits) -> Iterator[str]:
    """Yield models of which a tenant was charged what it was not booked, but for what was left reserved."""
    nameless, further = _nameless(evidence), _most_of_further(evidence)
    for tenant, model in product(TENANTS, MODELS):
        booked = sum(
            figures["prompt_tokens"] + figures["completion_tokens"]
            for (whose, _, answered), figures in evidence.ledger.items()
            if (whose, answered) == (tenant, model)
        )
        number, candidates = nameless[tenant]
        least, most = booked, booked + further
        most += sum(sorted(seen.call.reserved[1] for seen in candidates)[-number:]) if number else 0
        for seen in left_reserved(evidence):
            if (seen.call.tenant, seen.call.model) == (tenant, model):
                least, most = _add((least, most), seen.call.reserved)
        counted = _counted(evidence, limits, tenant, BY_MODEL["name"], model=model)
        if not least <= counted <= most:
            yield f"{tenant} {model}: counted {counted}, booked {booked}, so {least} to {most}"


def _most_of_further(evidence: Evidence) -> int:
    """Return what calls of killed gateways have reserved at most where they were to be answered instead."""
    largest = max((one.call.reserved[1] for one in evidence.seen if one.call.reserves), default=0)
    known = [evidence.by_call_id.get(call_id) for call_id in evidence.further]
    return sum(largest if seen is None else seen.call.reserved[1] for seen in known)


def _everybodys(evidence: Evidence, booked: int) -> Range:
    """Return what is counted of everybody's where a gateway may be killed between the two steps of a call's end."""
    used = {
        event["call"]: int(event["prompt_tokens"]) + int(event["completion_tokens"])
        for event in evidence.events
        if event["event"] == "settled"
    }
    largest = max((one.call.reserved[1] for one in evidence.seen if one.call.reserves), default=0)
    counted = booked, booked
    for call_id in evidence.left_of_everybodys:
        seen = evidence.by_call_id.get(call_id)
        least, most = (0, largest) if seen is None else seen.call.reserved
        counted = _add(counted, (least - used.get(call_id, 0), most - used.get(call_id, 0)))
    for call_id in evidence.leftovers.keys() - evidence.left_of_everybodys:
        seen = evidence.by_call_id.get(call_id)
        counted = _add(counted, (0, largest if seen is None else seen.call.reserved[1]))
    return counted


def _counted(
    evidence: Evidence, limits: config.Limits, tenant: str, rule: object, *, model: str = "any", pool: str = "any"
) -> int:
    principal = Principal(tenant=tenant, key="key-0", plan=None, models=None)
    applying = Rulebook(limits).applying(principal, model=model, pool=pool)
    key = next(limit.key for limit in applying.limits if limit.rule == rule)
    return sum(int(one.value.split()[0]) for one in evidence.keys if one.name == key)


def _nameless(evidence: Evidence) -> dict[str, tuple[int, Sequence[Seen]]]:
    """Return for each tenant how many reservations nobody can name, and whose they may be."""
    number = Counter(tag for call_id, tag in evidence.leftovers.items() if call_id not in evidence.by_call_id)
    candidates = defaultdict(list)
    for seen in evidence.unlogged:
        if evidence.id_of(seen) is None and seen.call.reserves:
            candidates[seen.call.tenant].append(seen)
    return {tenant: (number[digest(tenant)], candidates[tenant]) for tenant in TENANTS}


def _sums_to(missing: Range, number: int, choices: Sequence[Range]) -> bool:
    """Whether so many of the `choices` may amount to what is missing."""
    if number > _MOST_NAMELESS:
        return _meet(missing, (sum(sorted(least for least, _ in choices)[:number]), sum(most for _, most in choices)))
    sums = (reduce(_add, some, (0, 0)) for some in combinations(choices, number))
    return any(_meet(missing, one) for one in sums)


def _add(one: Range, other: Range) -> Range:
    return one[0] + other[0], one[1] + other[1]


def _meet(one: Range, other: Range) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _beyond(evidence: Evidence) -> Iterator[str]:
    for seen in left_reserved(evidence):
        for attempt in evidence.by_seed[seen.call.number]:
            input_most = seen.call.inputs[1]
            if attempt.generated > seen.call.output or attempt.prompt > input_most:
                yield f"{attempt.request_id}: {attempt.prompt}+{attempt.generated} of {input_most}+{seen.call.output}"
