"""The gateway's event loop, for tests: one that says at its close what was left open, and closes all the same.

A warning that is raised, as ours are, would keep uvloop from closing what it warns of; then it waits for that for ever.
"""

import warnings

import uvloop


class ClosingLoop(uvloop.Loop):
    """uvloop's loop. `close` raises a `ResourceWarning` of whatever was open still."""

    def close(self) -> None:
        """Close it, and every handle that is open."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            super().close()
        if caught:
            raise ResourceWarning(f"left open: {', '.join(str(warning.message) for warning in caught)}")
