"""`metrics` and `logging`: how much is told of what happens, and in which form."""

from typing import Literal

from gateway.config.section import Count, Section


class Metrics(Section):
    """Bounds on what a scrape can hold."""

    max_tenants: Count = 200


class Logging(Section):
    """One line an event, on standard output."""

    format: Literal["json", "text"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"
