def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    """A header without a key is compared as well, and then refused."""
    words = ["", *(authorization or "").split(" ", 1)][-2:]
    key = words[1] if len(words) == 2 and words[0].casefold() == "bearer" else ""
    digest = hashlib.sha256(key.encode()).hexdigest()
    hits = {each.client for each in keys if same(digest, each.sha256)}
    return hits.pop() if hits and key else None
