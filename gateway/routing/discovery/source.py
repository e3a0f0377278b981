"""What is common to all that finds replicas: they tell of what there is, again and again, or say why they cannot."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.config import ReplicaEntry

Take = Callable[[Sequence[ReplicaEntry]], None]
"""Is told what there is now, in any order, whether or not it differs from before."""


class Away(Exception):
    """The source cannot say what there is. The message can be logged as it is: it holds no secret."""


class Source(Protocol):
    """One pool's."""

    longest_pause_s: float
    """After so long at most it is asked again where it could not say."""

    async def follow(self, take: Take) -> None:
        """Tell `take` what there is, now and whenever the source says it again.

        Raises:
            Away: the source cannot say; what was told holds on.
        """
