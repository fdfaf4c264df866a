from threeloops.training.checkpoint.crash import check as _check


def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """All fsyncs before and after the publication, and then each is left out that is not missed."""
    last = len(operations) - 1
    _, old, new = operations[last]
    paths = {"."}
    for kind, *words in operations[:last]:
        if kind == "rename":
            moved = {path for path in paths if path == words[0] or path.startswith(words[0] + "/")}
            paths = paths - moved | {words[1] + path[len(words[0]) :] for path in moved}
        paths |= {words[-1]} if kind != "write" else {words[0]}
    paths |= {path.rpartition("/")[0] or "." for path in paths}
    syncs = [(last - 1, path) for path in sorted(paths)] + [
        (last, path) for path in ("/".join(new.split("/")[:-1]) or ".",)
    ]
    start = {}
    for path in read:
        changed = path == new or path.startswith(new + "/") or path in paths
        if not changed:
            for part in range(1, path.count("/") + 1):
                start["/".join(path.split("/")[:part])] = None
            start[path] = b"there"
    for kind, *words in operations:
        for path in words[:1] if kind == "write" else [words[-1]]:
            for part in range(1, path.count("/") + 1):
                top = "/".join(path.split("/")[:part])
                if (
                    not any(k == "mkdir" and w[0] == top for k, *w in operations)
                    and top not in (old, new)
                    and not top.startswith((old + "/", new + "/"))
                ):
                    start.setdefault(top, None)
    for kind, *words in operations:
        if kind == "write" and not any(k == "create" and w[0] == words[0] for k, *w in operations):
            start.setdefault(words[0], b"")
    if new not in start and any(kind == "create" and words[0] == old for kind, *words in operations):
        start[new] = b"before"
    start = dict(sorted(start.items()))

    def load(folder):
        target = folder / new
        if new in start and target.read_bytes() == b"before":
            return "old"
        if not target.exists():
            return "old"
        return [(folder / path).read_bytes() for path in read]

    def fine(chosen):
        return _check(with_syncs(operations, start, chosen), load, most=300).ok

    for each in list(syncs):
        if fine([other for other in syncs if other != each]):
            syncs.remove(each)
    return syncs
