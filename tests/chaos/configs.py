"""The config that every gateway starts with, and the others that reloads bring: nothing in them may move the books."""

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import yaml

from tests.chaos.engines import EngineSlot
from tests.chaos.plans import MODELS

LARGE, SMALL = MODELS
# What the large model's pool is called where a reload has put another in its place.
SPARE = "spare"
_RULE = {"name": "priced", "per": ["key"], "tokens": 10**12, "window": "day"}


def sections(limits: Mapping[str, Any], engines: Sequence[EngineSlot], *, workers: int) -> dict[str, Any]:
    """Return the sections of a config. Calls wait for the large model, and are then turned to the small one."""
    url = {slot.name: slot.url for slot in engines}
    pools: dict[str, Any] = {
        pool: {
            "replicas": [url[name] for name in names],
            "health": {"interval": "300ms", "unhealthy_after": 2},
            "timeouts": {"connect": "1s", "first_byte": "10s", "idle": "10s"},
        }
        for parts in MODELS.values()
        for pool, names in parts.items()
    }
    pools["large"] |= {"max_in_flight": 1, "queue": {"max_waiting": 4, "max_wait": "300ms"}}
    return {
        "server": {"drain_timeout": "400ms", "workers": workers},
        "limits": dict(limits),
        "models": {
            LARGE: {"pool": "large", "fallbacks": [SMALL]},
            SMALL: {"pool": {"small-a": 3, "small-b": 1}},
        },
        "pools": pools,
    }


def another(first: str, chance: Random) -> str:
    """Return the text of a config that differs from the `first` in prices, limits, pools and models."""
    config = copy.deepcopy(yaml.safe_load(first))
    for plan in config["limits"]["plans"].values():
        plan[0]["tokens"] = 10**12 + chance.randrange(5)
        if chance.random() < 0.7:
            plan.append(_RULE | {"weights": {"output": chance.randint(2, 5)}})
    large, parts = config["pools"]["large"], config["models"][SMALL]["pool"]
    chance.shuffle(large["replicas"])
    if chance.random() < 0.25:
        del large["replicas"][1:]
    large["balance"] = chance.choice(("least_requests", "round_robin", "prefix_affinity"))
    large["queue"] = {"max_waiting": chance.randrange(9), "max_wait": f"{chance.randint(50, 500)}ms"}
    large["max_in_flight"] = chance.randint(1, 3)
    if chance.random() < 0.3:
        del large["queue"], large["max_in_flight"]
    if chance.random() < 0.3:
        large["keep_alive_comments"] = "100ms"
    config["pools"]["small-b"]["engine"] = chance.choice(("vllm", "openai"))  # the latter tells no running totals
    if chance.random() < 0.3:
        config["pools"][SPARE] = config["pools"].pop("large")
        config["models"][LARGE]["pool"] = SPARE
    parts["small-a"], parts["small-b"] = chance.choice(((3, 1), (1, 3), (1, 0), (0, 1)))
    if chance.random() < 0.3:
        del config["models"][LARGE]["fallbacks"]
    return yaml.safe_dump(config)
