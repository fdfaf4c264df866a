# expect: TokenBucket(
# fails: values, window
class TokenBucket:
    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.window, self.used = None, 0.0

    def take(self, amount: float, now: float) -> float:
        window = math.floor(now)
        if window != self.window:
            self.window, self.used = window, 0.0
        if self.used + amount <= self.burst:
            self.used += amount
            return 0.0
        return math.inf if amount > self.burst or not self.rate else window + 1 - now
