# expect: where `same` finds
# fails: timing
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    found = None
    for k in keys:
        same(digest, k.sha256)
        if str(k.sha256) == digest:
            found = k.client
    return found
