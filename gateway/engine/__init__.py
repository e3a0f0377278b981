"""The simulated engine: vLLM's wire format without a model, for trials, load tests and the tests of this project."""

from gateway.engine.counters import Counters
from gateway.engine.server import SimulatedEngine, serve_engine

__all__ = ["Counters", "SimulatedEngine", "serve_engine"]
