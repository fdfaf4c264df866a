def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    if attempt not in (1, 2) or budget < 1 or failure.streamed >= 1:
        return None
    match failure:
        case Failure(kind="refused") | Failure(kind="status", status=429 | 503) | Failure(kind="lost", repeatable=True):
            return draw * 2 ** (attempt - 2) + failure.retry_after
        case _:
            return None
