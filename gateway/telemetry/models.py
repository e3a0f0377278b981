"""The models that have a label of their own: those of the config, and the last that were.

A model that left the config keeps its label, because calls to it are still under way and its counters are still read.
"""

from collections.abc import Collection

# Enough for whoever renames models now and then; each has some forty series in every scrape.
FORMER = 200


class ModelNames(dict[str | None, str]):
    """Each name's label, which is the name. Whatever is not here has none."""

    def __init__(self, configured: Collection[str]) -> None:
        super().__init__({name: name for name in configured})

    def configure(self, configured: Collection[str], *, busy: Collection[str]) -> set[str]:
        """Go by these from now on. Return who has lost their label: the oldest of the former, but for who is `busy`."""
        for name in configured:
            self.pop(name, None)
        former = [name for name in self if name is not None]
        self.update({name: name for name in configured})
        gone = {name for name in former[: max(0, len(former) - FORMER)] if name not in busy}
        for name in gone:
            del self[name]
        return gone
