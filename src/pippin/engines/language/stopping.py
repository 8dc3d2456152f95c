"""Stop strings, found across token borders."""


class StopFinder:
    """Holds back text that may be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that is safe to show."""
        if not self._stops:
            return text
        held = self._held + text
        found = [(held.index(stop), stop) for stop in self._stops if stop in held]
        if found:
            place, self.found = min(found)
            self._held = ""
            return held[: place + len(self.found) * self._include]
        keep = max(
            (size for stop in self._stops for size in range(1, len(stop)) if held.endswith(stop[:size])),
            default=0,
        )
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held
