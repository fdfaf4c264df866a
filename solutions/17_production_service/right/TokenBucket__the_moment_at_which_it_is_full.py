class TokenBucket:
    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.full_at = -math.inf  # generic cell rate algorithm: one number instead of two
        self.clock = -math.inf
        self.left = burst  # only for rate 0

    def take(self, amount: float, now: float) -> float:
        if amount > self.burst:
            return math.inf
        if self.rate == 0:
            if amount > self.left + 1e-9:
                return math.inf
            self.left -= amount
            return 0.0
        self.clock = max(self.clock, now)
        full_at = max(self.full_at, self.clock) + amount / self.rate
        wait = full_at - self.clock - self.burst / self.rate
        if wait * self.rate > 1e-9:
            return wait
        self.full_at = full_at
        return 0.0
