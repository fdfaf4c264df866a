class TokenBucket:
    def __init__(self, rate: float, burst: float):
        self.rate, self.burst, self.history = rate, burst, []

    def take(self, amount: float, now: float) -> float:
        if self.history:
            now = max(now, self.history[-1][0])
        level, before = self.burst, None
        for moment, taken in self.history:
            if before is not None:
                level = min(self.burst, level + (moment - before) * self.rate)
            level, before = level - taken, moment
        if before is not None:
            level = min(self.burst, level + (now - before) * self.rate)
        passes = level - amount > -1e-9
        self.history.append((now, amount if passes else 0.0))
        if passes:
            return 0.0
        return math.inf if amount > self.burst or not self.rate else (amount - level) / self.rate
