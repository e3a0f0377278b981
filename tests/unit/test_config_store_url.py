"""What `limits.store` may name, and what is said of what it may not."""

import pytest

from gateway.config import store_url
from gateway.config.file import BadConfig, parse

PLACES = (("a", 26379), ("::1", 7000), ("c.example", 26379))


def test_sentinels_their_master_and_who_is_who() -> None:
    url = store_url.parse(
        "rediss+sentinel://us%40er:p%2F@a,[::1]:7000,c.example:26379/my%20master/3"
        "?sentinel_username=s&sentinel_password=s%2Fp&ssl_ca_certs=/ca.pem"
    )
    assert (url.topology, url.places, url.master, url.database) == ("sentinel", PLACES, "my master", 3)
    assert url.server(("b", 6379)) == "rediss://us%40er:p%2F@b:6379/3?ssl_ca_certs=%2Fca.pem"
    assert url.server(("fe80::2", 6379)) == "rediss://us%40er:p%2F@[fe80::2]:6379/3?ssl_ca_certs=%2Fca.pem"
    assert url.sentinel(("a", 26379)) == "rediss://s:s%2Fp@a:26379?ssl_ca_certs=%2Fca.pem"


def test_sentinels_without_users() -> None:
    url = store_url.parse("redis+sentinel://a/limits")
    assert (url.places, url.master, url.database) == ((("a", 26379),), "limits", 0)
    assert url.server(("b", 1)) == "redis://b:1/0"
    assert url.sentinel(("a", 26379)) == "redis://a:26379"


@pytest.mark.parametrize(
    "text", ["redis+cluster://:pw@a:1,b", "redis+cluster://:pw@a:1,b/", "redis+cluster://:pw@a:1,b/0"]
)
def test_a_cluster(text: str) -> None:
    url = store_url.parse(text)
    assert (url.topology, url.places) == ("cluster", (("a", 1), ("b", 6379)))
    assert url.server(("b", 6379)) == "redis://:pw@b:6379/0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mongodb://x", "expected memory, or a URL such as redis://"),
        ("redis+other://x", "expected memory, or a URL such as redis://"),
        ("redis://with space", "expected memory, or a URL such as redis://"),
        (
            "redis+sentinel://:s3cret@a:26379",
            "expected redis+sentinel://host:port,host:port/MASTER or …/MASTER/database",
        ),
        (
            "redis+sentinel://:s3cret@a:26379/",
            "expected redis+sentinel://host:port,host:port/MASTER or …/MASTER/database",
        ),
        ("redis+sentinel://:s3cret@a/m/x", "expected redis+sentinel://host:port,host:port/MASTER or …/MASTER/database"),
        (
            "redis+sentinel://:s3cret@a/m/0/1",
            "expected redis+sentinel://host:port,host:port/MASTER or …/MASTER/database",
        ),
        ("redis+sentinel://:s3cret@a:1,b:2/0", "/0 is a database: expected …/MASTER/0"),
        ("redis://:s3cret@a:1,b:2/0", "expected one host; of several, redis+sentinel:// or redis+cluster://"),
        ("redis://:s3cret@a:70000/0", "expected host:port after the scheme"),
        ("redis://:s3cret@a:b", "expected host:port after the scheme"),
        ("redis+sentinel://:s3cret@a,,b/m", "expected host:port after the scheme"),
        ("redis+sentinel://:s3cret@/m", "expected host:port after the scheme"),
        ("redis+sentinel://:s3cret@a:70000/m", "expected host:port after the scheme"),
        ("redis+sentinel://:s3cret@a:x/m", "expected host:port after the scheme"),
        ("redis+sentinel://a/m?sentinel_username=s3cret", "sentinel_username: only with sentinel_password"),
        ("redis+cluster://:s3cret@a/1", "expected redis+cluster://host:port,host:port and no path"),
        ("redis+cluster://a?sentinel_password=s3cret", "sentinel_password: only with redis+sentinel://"),
    ],
)
def test_what_is_none_says_what_was_expected_and_no_password(text: str, expected: str) -> None:
    with pytest.raises(BadConfig) as bad:
        parse(f"limits: {{store: '{text}'}}")
    (problem,) = [line for line in bad.value.problems if line.startswith("limits.store")]
    assert expected in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize(
    "text", ["redis://", "redis:///3", "redis://:pw@:6380/1", "rediss://u@[::1]:1?db=2", "redis://a_b"]
)
def test_one_server_is_whatever_redis_py_reads(text: str) -> None:
    assert store_url.parse(text).topology == "server"


def test_a_clusters_events_are_with_their_tenants() -> None:
    with pytest.raises(BadConfig) as bad:
        parse("limits: {store: 'redis+cluster://a', events: {}}")
    assert "limits: events.stream: expected tenant" in "\n".join(bad.value.problems)
    for store in ("redis://a", "redis+sentinel://a/m"):
        with pytest.raises(BadConfig) as bad:
            parse(f"limits: {{store: '{store}', events: {{}}}}")
        assert "events" not in "\n".join(bad.value.problems)
