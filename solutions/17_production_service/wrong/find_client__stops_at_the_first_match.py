# expect: also after a match
# fails: timing
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    """The client who has this key, found without saying how close a guess came."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    for each in keys:
        if same(digest, each.sha256):
            return each.client
    return None
