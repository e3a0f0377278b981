"""What engines tell of their load, and what it makes of a replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import PoolEntry
from gateway.routing.engine_load import EngineLoad, read_load
from gateway.routing.replica import Replica

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:num_requests_waiting{engine="1",model_name="a"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 900.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.75
"""


@pytest.mark.parametrize(
    ("engine", "text", "load"),
    [
        ("vllm", VLLM, EngineLoad(5, 4, 0.75)),
        ("vllm", VLLM.replace(b":kv_", b":gpu_"), EngineLoad(5, 4, 0.75)),
        ("vllm", VLLM.replace(b"kv_cache_usage_perc", b"other"), EngineLoad(5, 4)),
        ("vllm", VLLM.replace(b" 3.0\n", b" 3.0 1764000000000\n"), EngineLoad(5, 4, 0.75)),
        (
            "sglang",
            b"sglang:num_running_reqs 7\nsglang:num_queue_reqs 1\nsglang:token_usage 1.5\n",
            EngineLoad(7, 1, 1),
        ),
        ("tgi", b"tgi_batch_current_size 8\ntgi_queue_size 2", EngineLoad(8, 2)),
        ("llamacpp", b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", EngineLoad(1, 0)),
        ("tgi", b"tgi_batch_current_size NaN\ntgi_queue_size 2", None),
        ("tgi", b"tgi_batch_current_size -1\ntgi_queue_size 2", None),
        ("tgi", b"tgi_batch_current_size\ntgi_queue_size x", None),
        ("vllm", b"", None),
        ("sglang", VLLM, None),
        ("openai", VLLM, None),
    ],
)
def test_each_engine_tells_it_in_its_own_words(engine: str, text: bytes, load: EngineLoad | None) -> None:
    assert read_load(text, engine) == load  # type: ignore[arg-type]  # a parameter of the test


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_bytes_break_the_reading(noise: bytes, at: int) -> None:
    read_load(VLLM[:at] + noise + VLLM[at:], "vllm")
    assert read_load(noise + b"\n" + VLLM, "vllm") is not None


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.floats(0, 1))
def test_what_is_not_in_flight_from_here_is_others(running: int, waiting: int, own: int, cache: float) -> None:
    entry = PoolEntry.model_validate({"replicas": ["http://a:1"]})
    replica = Replica(entry.replicas[0], entry)
    replica.in_flight = own
    replica.told(EngineLoad(running, waiting))
    assert replica.others == max(0, running + waiting - own)
    replica.told(EngineLoad(running, waiting, cache))
    assert max(0, running + waiting - own) <= replica.others <= max(0, running + waiting - own) + running + waiting
    replica.told(None)
    assert (replica.others, replica.load) == (0, None)
