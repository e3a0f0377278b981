"""What discovery decides without any I/O."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ReplicaEntry
from gateway.routing.discovery.dns import EMPTY_AGAIN_S, SHORTEST_S, Answer, Record, wait_s, weighed
from gateway.routing.discovery.file import MAX_BYTES, listed_in
from gateway.routing.discovery.found import Doubt, settled, url_of
from gateway.routing.discovery.lines import Lines
from gateway.routing.discovery.pause import pause_s
from gateway.routing.discovery.source import Away

ENTRIES = [ReplicaEntry(url=f"http://10.0.0.{number}:8000") for number in range(8)]
some_entries = st.lists(st.sampled_from(ENTRIES), max_size=12)


@given(some_entries, st.sets(st.sampled_from(ENTRIES).map(lambda one: one.url)), st.integers(1, 10), st.randoms())
def test_an_answer_means_the_same_in_any_order_and_who_is_known_goes_before_others(
    found: list[ReplicaEntry], known: set[str], most: int, chance: random.Random
) -> None:
    here = [entry for entry in ENTRIES if entry.url in known]
    chosen, left_out = settled(found, known=here, most=most)
    urls = [entry.url for entry in chosen]
    there = {entry.url for entry in found}
    assert len(urls) == len(set(urls)) == min(most, len(there))
    assert len(urls) + left_out == len(there)
    assert set(urls) <= there
    if left_out and not known >= set(urls):
        assert there & known <= set(urls)
    shuffled = [*found]
    chance.shuffle(shuffled)
    assert settled(shuffled, known=here, most=most) == (chosen, left_out)
    assert settled(chosen, known=chosen, most=most) == (chosen, 0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=30))
def test_a_name_is_empty_only_where_every_answer_was_for_long_enough(steps: list[tuple[bool, float]]) -> None:
    doubt, now, last_filled, empty_since = Doubt(for_s=30), 0.0, [], None
    for filled, passed in steps:
        now += passed
        if filled:
            last_filled, empty_since = ENTRIES[:2], None
            assert doubt.believed(ENTRIES[:2], now) == ENTRIES[:2]
            continue
        empty_since = now if empty_since is None else empty_since
        if now - empty_since >= 30:
            last_filled = []
        assert list(doubt.believed((), now)) == last_filled


def test_without_doubt_an_empty_answer_is_believed_at_once() -> None:
    doubt = Doubt(for_s=0)
    assert doubt.believed(ENTRIES, 0.0) == ENTRIES
    assert list(doubt.believed((), 0.0)) == []


records = st.builds(
    Record, st.integers(0, 3), st.integers(0, 65535), st.just(8000), st.sampled_from([".", "a.", "b.", "c."])
)


@given(st.lists(records, max_size=10))
def test_the_first_priority_is_used_and_its_weights_keep_their_proportions(listed: list[Record]) -> None:
    used = weighed(listed)
    there = [record for record in listed if record.target != "."]
    assert [record for record, _ in used] == [
        record for record in there if record.priority == min(one.priority for one in there)
    ]
    for record, weight in used:
        ReplicaEntry(url="http://a", weight=weight / 32)
        for other, others in used:
            if record.weight and other.weight:
                assert weight / others == pytest.approx(record.weight / other.weight)
            elif other.weight:
                assert weight <= others
    if used:
        assert max(weight for _, weight in used) == 1


@pytest.mark.parametrize(
    ("entries", "ttl_s", "waits"),
    [
        (ENTRIES, 12.0, 12.0),
        (ENTRIES, 0.0, SHORTEST_S),
        (ENTRIES, 3600.0, 30.0),
        (ENTRIES, None, 30.0),
        ([], None, EMPTY_AGAIN_S),
    ],
)
def test_a_name_is_asked_again_when_its_records_have_lived(
    entries: list[ReplicaEntry], ttl_s: float | None, waits: float
) -> None:
    assert wait_s(Answer(tuple(entries), ttl_s), interval_s=30.0) == waits
    assert wait_s(Answer(tuple(entries), ttl_s), interval_s=0.05) == 0.05


@given(st.integers(1, 10**9), st.floats(0.05, 60), st.randoms())
def test_pauses_grow_up_to_their_bound(failures: int, longest_s: float, chance: random.Random) -> None:
    pause = pause_s(failures, longest_s=longest_s, chance=chance)
    assert longest_s / 4 <= pause <= longest_s or pause < 0.5 * 2**failures
    assert pause >= min(0.25, longest_s / 2)


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(1, 9)))
def test_lines_are_whole_wherever_the_stream_is_cut(wanted: list[bytes], cuts: list[int]) -> None:
    wanted = [line.replace(b"\n", b"") for line in wanted]
    stream, got, lines = b"".join(line + b"\n" for line in wanted), list[bytes](), Lines(12)
    for cut in cuts:
        got += lines.feed(stream[:cut])
        stream = stream[cut:]
    got += lines.feed(stream)
    assert got == [line for line in wanted if line.strip()]
    assert lines.feed(b"the rest") == []


@pytest.mark.parametrize("pieces", [[b"x" * 13], [b"x" * 7, b"x" * 7], [b"x" * 13 + b"\n"]])
def test_a_line_that_does_not_end_is_refused(pieces: list[bytes]) -> None:
    lines, *begun, end = Lines(12), *pieces
    assert [lines.feed(piece) for piece in begun] == [[] for _ in begun]
    with pytest.raises(ValueError, match="more than 12 bytes"):
        lines.feed(end)


def test_an_address_becomes_a_url() -> None:
    assert url_of("http", "10.0.0.1", 8000) == "http://10.0.0.1:8000"
    assert ReplicaEntry(url=url_of("https", "fd00::1", 443)).url == "https://[fd00::1]:443"


def test_a_file_lists_replicas_as_the_config_does() -> None:
    content = b'- http://a:1\n- {url: "http://b:2", weight: 2, served_name: x, server_name: y}\n'
    one, other = listed_in(content, source="f")
    assert (one, other) == (
        ReplicaEntry(url="http://a:1"),
        ReplicaEntry(url="http://b:2", weight=2, served_name="x", server_name="y"),
    )
    assert listed_in(b'["http://a:1"]', source="f") == (one,)
    assert listed_in(b"[]", source="f") == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "f: Input should be a valid tuple"),
        (b"replicas: [http://a:1]", "f: Input should be a valid tuple"),
        (b"- http://a:1\n- http://user:secret@b:2", "f: [1].url: String should match"),
        (b"- {url: http://a:1, wieght: 2}", "f: [0].wieght: "),
        (b"- http://a:1\n- http://a:1", "f: Value error, the same URL stands here twice"),
        (b"- [", "f is not YAML: "),
        (b"\xff", "f is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "f is larger than 4 MiB"),
    ],
)
def test_a_bad_file_says_why_and_shows_no_value(content: bytes, says: str) -> None:
    with pytest.raises(Away) as caught:
        listed_in(content, source="f")
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)
