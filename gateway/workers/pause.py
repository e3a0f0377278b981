"""How long to wait before a worker is started in the place of one that died. No I/O."""

# One that ran for so long died of something new.
_SOUND_S = 60.0
_FIRST_S = 0.5
_LONGEST_S = 30.0


class Pauses:
    """Those of one worker's place: none after a first death, then growing ones for as long as deaths follow quickly."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def next(self, ran_s: float) -> float:
        """Return the pause in seconds after a worker that ran for `ran_s`."""
        self._quick_deaths = 0 if ran_s >= _SOUND_S else self._quick_deaths + 1
        if self._quick_deaths <= 1:
            return 0.0
        return float(min(_LONGEST_S, _FIRST_S * 2 ** (self._quick_deaths - 2)))
