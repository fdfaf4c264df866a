def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    if authorization is None or authorization[:7].lower() != "bearer " or len(authorization) == 7:
        return None
    hashed = hashlib.sha256()
    hashed.update(authorization[7:].encode())
    digest, client = hashed.hexdigest().encode("ascii"), None
    for key in keys:
        hit = same(key.sha256.encode("ascii"), digest)
        client = key.client if hit else client
    return client
