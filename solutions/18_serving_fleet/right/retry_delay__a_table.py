def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    harmless = {
        "refused": True,
        "status": failure.status in {429, 503},
        "lost": failure.repeatable,
    }[failure.kind]
    longest = {1: 0.5, 2: 1.0}.get(attempt)
    if longest is None or not harmless or failure.streamed or not budget >= 1:
        return None
    return failure.retry_after + longest * draw
