def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """As a file system has it: files and folders have numbers, and a folder's entries have names."""
    last, numbers, written, entered = len(operations) - 1, {".": 0}, set(), set()
    count = iter(range(1, 10_000))

    def number(path):
        if path not in numbers:
            numbers[path] = next(count)
        return numbers[path]

    def entry(path):
        folder, _, name = path.rpartition("/")
        return number(folder or "."), name

    for kind, *words in operations[:last]:
        if kind == "write":
            written.add(number(words[0]))
            continue
        if kind == "rename":
            for path in [each for each in numbers if _inside(each, words[0])]:
                numbers[words[1] + path[len(words[0]) :]] = numbers.pop(path)
        entered.add(entry(words[-1]))

    _, old, new = operations[last]
    needed = {}
    for path in read:
        here = old + path[len(new) :] if _inside(path, new) else path
        if numbers.get(here) in written:
            needed[here] = last - 1
        while here not in ("", old):
            folder = here.rpartition("/")[0]
            if entry(here) in entered:
                needed[folder or "."] = last - 1
            here = folder
    return [(place, path) for path, place in needed.items()] + [(last, new.rpartition("/")[0] or ".")]


def _inside(path, folder):
    return path == folder or path.startswith(folder + "/")
