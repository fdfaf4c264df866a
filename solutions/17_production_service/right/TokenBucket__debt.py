from fractions import Fraction


class TokenBucket:
    """Counts what is missing, exactly."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = Fraction(rate), Fraction(burst)
        self.missing, self.seen = Fraction(0), None

    def take(self, amount: float, now: float) -> float:
        if self.seen is None:
            self.seen = Fraction(now)
        passed = max(Fraction(0), Fraction(now) - self.seen)
        self.seen += passed
        self.missing = max(Fraction(0), self.missing - passed * self.rate)
        over = self.missing + Fraction(amount) - self.burst
        if over <= Fraction(1, 10**9):
            self.missing += Fraction(amount)
            return 0.0
        if self.rate == 0 or amount > self.burst:
            return math.inf
        return float(over / self.rate)
