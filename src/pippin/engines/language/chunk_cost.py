"""What a chunk of prompt tokens costs beside decoding, learned from steps: a fixed part, for reading the weights, and a
part for each token."""

from dataclasses import dataclass

FADING = 0.9  # what a measurement weighs after the next one
SPREAD = 0.2  # of the mean size: chunks that differ less do not tell the two parts apart


@dataclass
class ChunkCost:
    """Least squares over measurements that fade, in seconds and tokens."""

    _weight: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0
    _largest: int = 0

    def observe(self, tokens: int, seconds: float) -> None:
        self._weight = self._weight * FADING + 1
        self._tokens = self._tokens * FADING + tokens
        self._seconds = self._seconds * FADING + seconds
        self._squares = self._squares * FADING + tokens * tokens
        self._products = self._products * FADING + tokens * seconds
        self._largest = max(tokens, int(self._largest * FADING))

    def affordable(self, seconds: float, fixed: float) -> int | None:
        """The size of a chunk that takes so long, at most twice the largest of late; None before any measurement.

        `fixed` stands for the fixed part as long as the measurements are too alike to tell it.
        """
        if not self._weight:
            return None
        tokens, taken = self._tokens / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - tokens * tokens
        slope = 0.0
        if spread > (SPREAD * tokens) ** 2:
            slope = (self._products / self._weight - tokens * taken) / spread
            fixed = taken - slope * tokens
        if slope <= 0 or fixed < 0:
            fixed = min(fixed, taken / 2) if fixed > 0 else 0.0
            slope = (taken - fixed) / tokens
        return min(max(int((seconds - fixed) / slope), 0), 2 * self._largest)
