"""Where the seconds go."""

import time


class Clock:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Note the time since the last lap."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
