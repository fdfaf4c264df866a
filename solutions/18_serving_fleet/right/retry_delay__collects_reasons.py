def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    reasons = [
        "the client has tokens" if failure.streamed > 0 else "",
        "no more attempts" if attempt > 2 else "",
        "no budget" if budget < 1 else "",
        "an error of the request" if failure.kind == "status" and failure.status not in (429, 503) else "",
        "may have been done" if failure.kind == "lost" and not failure.repeatable else "",
    ]
    if any(reasons):
        return None
    backoff = 0.5
    for _ in range(attempt - 1):
        backoff = 2 * backoff
    return failure.retry_after + draw * backoff
