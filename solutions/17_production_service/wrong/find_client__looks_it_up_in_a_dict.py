# expect: a dict or a set, expected `same` alone
# fails: timing
def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    clients = {each.sha256: each.client for each in keys}
    return clients.get(hashlib.sha256(key.encode()).hexdigest())
