"""Content-Type and Content-Encoding -> nothing, or `UnsupportedMediaType`: only JSON in UTF-8, sent as it is."""

import re

from gateway.errors import UnsupportedMediaType

_JSON = re.compile(r"application/(?:[^\s/;,]+\+)?json", re.IGNORECASE)
_PARAMETER = re.compile(r";\s*([^\s=;]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;]*)")
_UTF8 = ("utf-8", "utf8")


def check_media_type(content_type: str | None, content_encoding: str | None) -> None:
    """Refuse a body that is declared as anything but JSON (RFC 6839 suffixes included) in UTF-8, sent as it is."""
    if content_encoding is not None and content_encoding.strip().lower() not in {"", "identity"}:
        raise UnsupportedMediaType("Compressed bodies are not read; send the body without Content-Encoding.")
    if content_type == "application/json":
        return
    media_type, separator, parameters = (content_type or "").partition(";")
    if not _JSON.fullmatch(media_type.strip()):
        raise UnsupportedMediaType("The body has to be JSON; send Content-Type: application/json.")
    for name, value in _PARAMETER.findall(separator + parameters):
        if name.lower() == "charset" and value.strip().strip('"').lower() not in _UTF8:
            raise UnsupportedMediaType("The body has to be UTF-8; leave charset out of Content-Type, or say utf-8.")
