"""How a gateway does in, one HTML document out: it asks for nothing else, and runs nothing but a script that refreshes.

What is shown are names and texts of others: `html` makes them inert, and the policy would let no other script run.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any

from gateway.admin.html import Html, element, joined, text
from gateway.admin.tables import Table, tables

_STYLE = """
:root { color-scheme: light dark; --good: #176d2d; --bad: #b3261e; --odd: #7a4f00; --line: #ccc; --dim: #555 }
@media (prefers-color-scheme: dark) {
  :root { --good: #6fd98a; --bad: #ff8a80; --odd: #ffc861; --line: #444; --dim: #aaa }
}
body { font: 14px/1.4 system-ui, sans-serif; margin: 1rem }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.2rem 0 .2rem }
p, ul { margin: .3rem 0 } table { border-collapse: collapse; margin: .3rem 0 }
th, td { border-bottom: 1px solid var(--line); padding: .15rem .7rem .15rem 0; text-align: left; vertical-align: top }
th { color: var(--dim); font-weight: normal; white-space: nowrap }
code { font-size: 12px; user-select: all }
section p, .dim { color: var(--dim) } section p { max-width: 60rem }
.ready, .up td:nth-child(2) { color: var(--good) } .not_ready, .trouble { color: var(--bad) }
.down td:nth-child(2), .breaker_open td:nth-child(2) { color: var(--bad) }
.drained td:nth-child(2), .resting td:nth-child(2), .warming_up td:nth-child(2) { color: var(--odd) }
.stale main { opacity: .4 }
.old { display: none; color: var(--bad) } .stale .old { display: block }
"""

# It leaves alone what somebody is about to copy, and what nobody looks at.
_SCRIPT = """
setInterval(async () => {
  if (document.hidden || String(getSelection())) return;
  let fresh = null;
  try {
    const answer = await fetch(location.href, {cache: "no-store", signal: AbortSignal.timeout(10000)});
    if (answer.ok) fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  } catch (error) {}
  document.body.classList.toggle("stale", fresh === null);
  if (fresh) document.querySelector("main").replaceWith(fresh);
}, 5000);
"""


def _source(inline: str) -> str:
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": "; ".join([
        "default-src 'none'",
        f"style-src {_source(_STYLE)}",
        f"script-src {_source(_SCRIPT)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}  # fmt: skip


# Beside this page, as a browser finds them.
_LINKS = ("../metrics", "../readyz", "status", "pools", "config", "usage", "limits", "revocations")


def page(status: dict[str, Any]) -> str:
    """Return the document that shows what `/admin/status` says."""
    head = Html(
        '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Gateway</title><style>{_STYLE}</style>"
    )
    old = element("p", text("The gateway does not answer: this is how it was."), class_="old")
    links = [element("a", text(link.removeprefix("../")), href=link) for link in _LINKS]
    main = [*_top(status), *map(_table, tables(status)), element("p", joined(links, " "))]
    body = element("body", old, element("main", joined(main, "\n")), Html(f"<script>{_SCRIPT}</script>"))
    return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"


def _top(status: dict[str, Any]) -> Iterator[Html]:
    state = element("span", text(status["status"].replace("_", " ")), class_=status["status"])
    yield element("h1", text(f"Gateway {status['version']}: "), state)
    yield element("p", text(f"as of {status['at']}"), class_="dim")
    if trouble := [element("li", text(said)) for said in status["trouble"]]:
        yield element("ul", *trouble, class_="trouble")


def _table(shown: Table) -> Html:
    said = [element("p", text(said)) for said in shown.said]
    return element("section", element("h2", text(shown.title)), *said, *_rows(shown))


def _rows(shown: Table) -> Iterator[Html]:
    if not shown.rows:
        return
    header = [*shown.header, *(["to paste"] if any(shown.commands) else [])]
    head = element("tr", *[element("th", text(word)) for word in header])
    marks = shown.marks or repeat("")
    commands = shown.commands or repeat("")
    rows = [_row(cells, mark, command) for cells, mark, command in zip(shown.rows, marks, commands, strict=False)]
    yield element("table", element("thead", head), element("tbody", joined(rows, "\n")))


def _row(cells: Sequence[object], mark: str, command: str) -> Html:
    shown = [element("td", text(cell)) for cell in cells]
    shown += [element("td", element("code", text(command)))] if command else []
    return element("tr", *shown, **({"class_": mark} if mark else {}))
