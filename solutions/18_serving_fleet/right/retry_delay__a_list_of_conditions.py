def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    checks = [
        lambda: failure.streamed == 0,
        lambda: attempt <= 2,
        lambda: not budget < 1,
        lambda: failure.kind != "status" or failure.status == 503 or failure.status == 429,
        lambda: failure.kind != "lost" or failure.repeatable,
    ]
    if all(check() for check in checks):
        return math.ldexp(draw, attempt - 2) + failure.retry_after
    return None
