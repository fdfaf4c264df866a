# expect: find_client('Bearer '
# fails: values
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    """The client who has this key, found without saying how close a guess came."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    found = None
    for each in keys:
        if same(digest, each.sha256):
            found = each.client
    return found
