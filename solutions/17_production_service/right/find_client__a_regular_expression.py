import re


def find_client(authorization: str | None, keys: list[Key], same) -> str | None:
    found = re.fullmatch(r"bearer (.+)", authorization or "", re.IGNORECASE | re.DOTALL)
    if found is None:
        return None
    digest = hashlib.sha256(found[1].encode("utf-8")).hexdigest()
    matches = [same(each.sha256, digest) for each in keys]
    return keys[matches.index(True)].client if any(matches) else None
