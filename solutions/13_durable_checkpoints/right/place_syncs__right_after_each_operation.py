def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """Follow each path back to where its content and its names were made; sync there."""
    last = len(operations) - 1
    _, old, new = operations[last]
    syncs = [(last, "/".join(new.split("/")[:-1]) or ".")]
    for path in read:
        name = path
        if path == new or path.startswith(new + "/"):
            name = old + path[len(new) :]
        content = True
        for position in range(last - 1, -1, -1):
            kind, *words = operations[position]
            if kind == "write" and words[0] == name and content:
                syncs.append((position, name))
                content = False
            elif kind == "rename" and words[1] == name:
                syncs.append((position, _parent(name)))
                name = words[0]
            elif (
                kind == "create" and words[0] == name and name != old and not _moved(operations[:last], name, position)
            ):
                syncs.append((position, _parent(name)))
        top = _parent(path)
        while top not in (".", new):
            inside = old + top[len(new) :] if top.startswith(new + "/") else top
            syncs += [
                (p, _parent(inside)) for p, (k, *w) in enumerate(operations[:last]) if k == "mkdir" and w[0] == inside
            ]
            top = _parent(top)
    return _once(syncs)


def _parent(path):
    return path.rpartition("/")[0] or "."


def _moved(operations, name, after):
    return any(kind == "rename" and words[0] == name for kind, *words in operations[after:])


def _once(syncs):
    """Of several before the publication on one path, the last."""
    last = max(position for position, _ in syncs)
    found = {}
    for position, path in sorted(syncs):
        found[path, position == last] = (position, path)
    return list(found.values())
