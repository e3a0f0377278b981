"""EndpointSlices as API servers tell of them, and the replicas that they amount to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import KubernetesEntry
from gateway.routing.discovery.slices import Expired, NotSlices, Slices
from tests.identity_provider import any_json
from tests.kubernetes_api import endpoint, endpoint_slice, listing


def slices_of(*items: Any, **entry: Any) -> Slices:
    slices = Slices(KubernetesEntry.model_validate({"service": "vllm", **entry}))
    slices.replace(listing(*items))
    return slices


def urls(slices: Slices) -> set[str]:
    return {entry.url for entry in slices.found()}


def test_the_pods_that_are_ready_and_not_about_to_end_are_replicas() -> None:
    slices = slices_of(
        endpoint_slice(
            "a",
            endpoint("10.0.0.1"),
            endpoint("10.0.0.2", ready=False),
            endpoint("10.0.0.3", ready=None),
            endpoint("10.0.0.4", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.5", ready=True, terminating=True),  # as with publishNotReadyAddresses
        ),
        endpoint_slice("b", endpoint("10.0.0.6"), endpoint("10.0.0.1")),
    )
    assert urls(slices) == {"http://10.0.0.1:8000", "http://10.0.0.3:8000", "http://10.0.0.6:8000"}


def test_a_pod_of_both_families_is_one_replica_at_its_first_ones_address() -> None:
    slices = slices_of(
        endpoint_slice("six", endpoint("fd00::1", uid="a"), endpoint("fd00::2", uid="b"), family="IPv6"),
        endpoint_slice("four", endpoint("10.0.0.1", uid="a")),
    )
    assert urls(slices) == {"http://10.0.0.1:8000", "http://[fd00::2]:8000"}
    # One family is told before the other: that must not make another replica for a moment.
    slices.apply(event("MODIFIED", endpoint_slice("four", endpoint("10.0.0.1", uid="a", ready=False))))
    assert urls(slices) == {"http://[fd00::2]:8000"}


@pytest.mark.parametrize(
    ("asked", "ports", "port"),
    [
        (None, [("", 8000)], 8000),
        ("http", [("metrics", 9000), ("http", 8001)], 8001),
        (8002, [("metrics", 9000)], 8002),
        (8002, [], 8002),
    ],
)
def test_a_port_is_asked_for_by_name_or_number(asked: Any, ports: list[tuple[str, int]], port: int) -> None:
    slices = slices_of(endpoint_slice("a", endpoint("10.0.0.1"), ports=ports), port=asked)
    assert urls(slices) == {f"http://10.0.0.1:{port}"}


@pytest.mark.parametrize(("asked", "ports"), [(None, [("a", 1), ("b", 2)]), ("http", [("metrics", 9000)]), (None, [])])
def test_where_no_slice_has_the_port_nothing_can_be_gone_by(asked: Any, ports: list[tuple[str, int]]) -> None:
    slices = slices_of(endpoint_slice("a", endpoint("10.0.0.1"), ports=ports), port=asked)
    with pytest.raises(NotSlices, match="no EndpointSlice has"):
        slices.found()


def test_a_service_without_pods_is_an_answer() -> None:
    assert slices_of().found() == []
    assert slices_of(endpoint_slice("a", ports=[]), port="http").found() == []


def test_how_pods_are_spoken_to_is_configured() -> None:
    (found,) = slices_of(endpoint_slice("a", endpoint("10.0.0.1")), scheme="https", server_name="vllm.svc").found()
    assert (found.url, found.server_name) == ("https://10.0.0.1:8000", "vllm.svc")


def event(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


changes = st.lists(
    st.tuples(
        st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
        st.sampled_from("abc"),
        st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4),
    ),
    max_size=15,
)


@given(changes)
def test_a_watch_comes_to_what_a_list_would_say(told: list[tuple[str, str, list[tuple[int, bool]]]]) -> None:
    watched, there = slices_of(), dict[str, Any]()
    for number, (kind, name, pods) in enumerate(told):
        endpoints = [endpoint(f"10.0.0.{pod}", ready=ready) for pod, ready in pods]
        item = endpoint_slice(name, *endpoints, version=str(number))
        watched.apply(event(kind, item))
        assert watched.version == str(number)
        there[name] = item
        if kind == "DELETED":
            del there[name]
    assert urls(watched) == urls(slices_of(*there.values()))


def test_a_bookmark_moves_the_version_alone() -> None:
    slices = slices_of(endpoint_slice("a", endpoint("10.0.0.1")))
    slices.apply(event("BOOKMARK", {"metadata": {"resourceVersion": "77"}}))
    assert (slices.version, urls(slices)) == ("77", {"http://10.0.0.1:8000"})


def test_a_version_that_the_server_forgot_is_told_from_other_errors() -> None:
    with pytest.raises(Expired):
        slices_of().apply(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))
    with pytest.raises(NotSlices, match="code 500"):
        slices_of().apply(event("ERROR", {"kind": "Status", "code": 500, "message": "secret"}))


@given(any_json, st.sampled_from(["ADDED", "BOOKMARK", "DELETED", "ERROR", "OTHER"]))
def test_garbage_is_refused_and_breaks_nothing(garbage: Any, kind: str) -> None:
    item = endpoint_slice("a", endpoint("10.0.0.1"))
    slices = slices_of(item)
    for told in (garbage, event(kind, garbage), event(kind, {**item, "metadata": garbage})):
        with pytest.raises((NotSlices, Expired)):
            slices.apply(told)
    with pytest.raises(NotSlices):
        slices.replace(garbage)
    for key in ("endpoints", "ports", "addressType"):
        try:
            slices.replace(listing({**item, key: garbage}))
            slices.found()
        except NotSlices:
            pass
    for key in ("addresses", "conditions", "targetRef"):
        try:
            slices.replace(listing(endpoint_slice("a", {**endpoint("10.0.0.1"), key: garbage})))
            slices.found()
        except NotSlices:
            pass
