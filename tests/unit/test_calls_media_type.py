"""Which declared media types are read as JSON."""

import pytest

from gateway.calls.media_type import check_media_type
from gateway.errors import UnsupportedMediaType


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;Charset=UTF-8",
        'application/json; charset="utf-8"',
        "application/json; charset=utf8",
        "application/json;odata.metadata=minimal; version=2",
        'application/json; profile="a;charset=utf-16"',
        "application/problem+json",
        "application/vnd.api+json; charset=utf-8",
        " application/json ",
    ],
)
def test_json_of_every_kind_is_read(content_type: str) -> None:
    check_media_type(content_type, None)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "json",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/+json",
        "application/json, text/plain",
        "application/json; charset=utf-16",
        "application/json; charset=iso-8859-1",
        "application/json; version=2; CHARSET = 'utf-16'",
    ],
)
def test_anything_else_is_refused(content_type: str | None) -> None:
    with pytest.raises(UnsupportedMediaType) as refused:
        check_media_type(content_type, None)
    assert (refused.value.status, refused.value.code) == (400, "unsupported_media_type")


@pytest.mark.parametrize("content_encoding", [None, "", "identity", "Identity "])
def test_a_body_sent_as_it_is_is_read(content_encoding: str | None) -> None:
    check_media_type("application/json", content_encoding)


@pytest.mark.parametrize("content_encoding", ["gzip", "br", "zstd", "identity, gzip", "utf-8"])
def test_a_compressed_body_is_refused(content_encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="Content-Encoding"):
        check_media_type("application/json", content_encoding)
