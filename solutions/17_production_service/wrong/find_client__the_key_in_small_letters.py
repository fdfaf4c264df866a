# expect: Bearer SK-1
# fails: values
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    if authorization is None:
        return None
    scheme, _, key = authorization.lower().partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    found = None
    for k in keys:
        if same(digest, k.sha256):
            found = k.client
    return found
