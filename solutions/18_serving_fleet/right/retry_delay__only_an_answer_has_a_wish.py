def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    if failure.streamed or attempt >= 3 or budget < 1:
        return None
    if failure.kind == "status" and failure.status not in (429, 503):
        return None
    if failure.kind == "lost" and not failure.repeatable:
        return None
    return (failure.retry_after if failure.kind == "status" else 0) + draw * 0.5 * 2 ** (attempt - 1)
