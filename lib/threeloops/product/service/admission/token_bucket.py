"""A token bucket: over any window of w seconds it grants at most burst + rate · w.

It starts full, with `burst` tokens, and is refilled continuously at `rate` tokens per second up to `burst` again. A
limit that counts per calendar minute instead would grant twice as much around the end of a minute.
"""

import math

__all__ = ["TokenBucket"]


class TokenBucket:
    """`rate` tokens per second, at least 0; `burst` tokens, above 0. Both may be fractions.

    `now` is seconds on any clock. A clock that steps back refills nothing until it has caught up, so the limit for a
    window also holds if the clock jumps back and forth.
    """

    def __init__(self, rate: float, burst: float):
        if not 0 <= rate < math.inf:
            raise ValueError(f"rate = {rate!r}: expected tokens per second, at least 0")
        if not 0 < burst < math.inf:
            raise ValueError(f"burst = {burst!r}: expected how many tokens it holds when full, above 0")
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = -math.inf

    def charge(self, amount: float, now: float) -> None:
        """Take `amount` tokens. First ask every bucket for its `wait`, so that a request is charged to all or none.

        Raises ValueError if the bucket does not hold as many.
        """
        if wait := self.wait(amount, now):
            raise ValueError(f"amount = {amount!r}: the bucket holds fewer; expected a charge after {wait:g} s")
        self._level = self._level_at(now) - amount
        self._at = max(self._at, now)

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` tokens could be taken: 0 if now, infinity if never.

        A client who returns after this time gets the tokens if no other request has taken some meanwhile: the time is
        rounded up.
        """
        if not 0 <= amount < math.inf:
            raise ValueError(f"amount = {amount!r}: expected a number of tokens, at least 0")
        if amount <= self._level_at(now):
            return 0.0
        if amount > self.burst or self.rate == 0:
            return math.inf
        wait = max(0.0, self._at - now + (amount - self._level) / self.rate)
        step = math.ulp(now + wait)
        while self._level_at(now + wait) < amount:
            wait += step
            step *= 2
        return wait

    def _level_at(self, now: float) -> float:
        elapsed = max(0.0, now - self._at)
        return min(self.burst, self._level + self.rate * elapsed) if elapsed and self.rate else self._level
