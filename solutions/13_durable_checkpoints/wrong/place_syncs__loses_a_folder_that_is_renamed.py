# expect: power cut
def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """The fsyncs that this save needs."""
    last = len(operations) - 1
    _, old, new = operations[last]
    made = {words[-1] for kind, *words in operations[:last] if kind != "write"}
    written = {words[0] for kind, *words in operations[:last] if kind == "write"}
    for kind, *words in operations[:last]:
        if kind == "rename" and words[0] in written:
            written.add(words[1])
    needed = set()
    for path in read:
        before = old + path[len(new) :] if path == new or path.startswith(new + "/") else path
        if before in written:
            needed.add(before)
        while before and before != old:
            parent = before.rpartition("/")[0]
            if before in made:
                needed.add(parent or ".")
            before = parent
    return [(last - 1, path) for path in sorted(needed)] + [(last, new.rpartition("/")[0] or ".")]
