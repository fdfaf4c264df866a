# expect: find_client('Bearer sk-1'
# fails: values, timing
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    """The client who has this key, found without saying how close a guess came."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    found = None
    for each in keys:
        if same(key, each.sha256):
            found = each.client
    return found
