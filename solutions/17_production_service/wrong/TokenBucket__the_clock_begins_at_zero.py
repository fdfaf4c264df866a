# expect: take(1, -99.5)
# fails: values
class TokenBucket:
    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.level, self.latest = burst, 0.0

    def take(self, amount: float, now: float) -> float:
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
        return (amount - self.level) / self.rate
