# expect: schlüssel
# fails: values
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    """The client who has this key, found without saying how close a guess came."""
    words = (authorization or "").split(" ")
    scheme, key = words[0], words[-1] if len(words) > 1 else ""
    if scheme.lower() != "bearer" or not key:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()
    found = None
    for each in keys:
        if same(digest, each.sha256):
            found = each.client
    return found
