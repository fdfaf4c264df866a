class TokenBucket:
    """Counts, in the wait, the seconds until a clock that was set back is where it was."""

    def __init__(self, rate, burst):
        self.rate, self.burst = rate, burst
        self.level, self.latest = burst, None

    def take(self, amount, now):
        if self.latest is None:
            self.latest = now
        if now > self.latest:
            self.level = min(self.burst, self.level + self.rate * (now - self.latest))
            self.latest = now
        if amount > self.burst:
            return math.inf
        if amount <= self.level + 1e-9:
            self.level -= amount
            return 0.0
        if self.rate == 0:
            return math.inf
        return (self.latest - now) + (amount - self.level) / self.rate
