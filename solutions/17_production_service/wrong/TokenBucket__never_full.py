# expect: take(1, 50)
# fails: values
class TokenBucket:
    """At most `burst` at once, and `rate` per second in the long run."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.level, self.latest = burst, None

    def take(self, amount: float, now: float) -> float:
        """0.0 if the amount was taken, or the seconds until it could be."""
        if self.latest is not None and now > self.latest:
            self.level = self.level + self.rate * (now - self.latest)
        self.latest = now if self.latest is None else max(now, self.latest)
        if amount <= self.level + 1e-9:
            self.level -= amount
            return 0.0
        if amount > self.burst or self.rate == 0:
            return math.inf
        return (amount - self.level) / self.rate
