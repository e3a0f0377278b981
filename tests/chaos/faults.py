"""What befalls a run: engines, the store and gateways, each in a track of its own, at moments drawn from the seed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.clock import SystemClock
from tests.chaos import configs
from tests.chaos.engines import EngineSlot
from tests.chaos.gateways import GatewaySlot
from tests.chaos.topologies import Topology
from tests.processes import Running

# The longest that something stays away. A store that is away for longer than a lease lives costs slots, which is told
# of in docs/limits.md, and is not what is looked for here.
ENGINE_AWAY_S = 1.5
GATEWAY_FROZEN_S = 1.0
STORE_AWAY_OF_LEASE = 0.27

# Between the end of one fault of a track and the next.
_CALM_S = {"engines": (0.2, 1.2), "store": (0.8, 2.5), "gateways": (0.6, 2.0), "configs": (0.5, 2.0)}
# How often of ten each befalls a gateway; of one without workers the rest.
_BEFALLS = {"worker killed": 4, "killed": 3, "stopped": 2, "frozen": 1, "orphaned": 1}


@dataclass(frozen=True)
class Fault:
    """Something that was done to engines, gateways or the store. Times are seconds since the epoch."""

    track: str
    name: str
    began_s: float
    ended_s: float


class Faults:
    """The tracks. `happened` is what was done so far."""

    def __init__(
        self,
        seed: int,
        *,
        engines: Sequence[EngineSlot],
        gateways: Sequence[GatewaySlot],
        topology: Topology,
        lease_s: float,
    ) -> None:
        self.happened: list[Fault] = []
        self._clock = SystemClock()
        self._engines = engines
        self._gateways = gateways
        self._topology = topology
        self._store_away_s = lease_s * STORE_AWAY_OF_LEASE
        self._seed = seed
        self._configs = [slot.config.read_text() for slot in gateways]

    async def run(self, seconds: float) -> None:
        """Do harm for so long. All that was harmed is whole again when this returns."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for name, strike in (
                ("engines", self._engine),
                ("store", self._store),
                ("gateways", self._gateway),
                ("configs", self._config),
            ):
                group.create_task(self._track(name, strike, until))

    async def _track(self, name: str, strike: Callable[[Random], Awaitable[str]], until: float) -> None:
        chance = Random(f"{self._seed}:{name}")
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(chance.uniform(*_CALM_S[name]))
            if loop.time() >= until:
                return
            began_s = self._clock.now()
            what = await strike(chance)
            self.happened.append(Fault(name, what, began_s, self._clock.now()))

    async def _engine(self, chance: Random) -> str:
        slot = chance.choice(self._engines)
        assert slot.running is not None
        away_s = chance.uniform(0, ENGINE_AWAY_S)
        if chance.random() < 0.25:
            await _freeze(slot.running, away_s)
            return "engine frozen"
        slot.running.send(signal.SIGKILL)
        await slot.running.ended()
        await asyncio.sleep(away_s)
        await slot.start()
        return "engine killed"

    async def _store(self, chance: Random) -> str:
        name = chance.choice(sorted(self._topology.faults))
        await self._topology.faults[name](self._store_away_s * chance.random())
        return name

    async def _gateway(self, chance: Random) -> str:
        slot = chance.choice(self._gateways)
        may = [what for what in _BEFALLS if slot.workers > 1 or what not in {"worker killed", "orphaned"}]
        match what := chance.choices(may, [_BEFALLS[one] for one in may])[0]:
            case "worker killed":
                slot.kill_worker(chance.randrange(slot.workers))
                return what
            case "frozen":
                frozen = slot.freeze(chance.randrange(slot.workers))
                try:
                    await asyncio.sleep(chance.uniform(0, GATEWAY_FROZEN_S))
                finally:
                    slot.thaw(frozen)
            case _:
                await {"killed": slot.kill, "stopped": slot.stop, "orphaned": slot.orphan}[what]()
                await slot.start()
        return f"gateway {what}"

    async def _config(self, chance: Random) -> str:
        slot = chance.choice(self._gateways)
        first = self._configs[slot.place]
        slot.reload(configs.another(first, chance))
        return "gateway reloaded"


async def _freeze(running: Running, for_s: float) -> None:
    running.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        running.send(signal.SIGCONT)
