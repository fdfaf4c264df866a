def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """What is needed are contents and pairs of a folder and a name."""
    *before, (_, old, new) = operations
    content, names = set(), set()
    for kind, *words in before:
        if kind == "write":
            content |= {words[0]}
        else:
            names |= {(str(Path(words[-1]).parent), Path(words[-1]).name)}
        if kind == "rename" and words[0] in content:
            content = content - {words[0]} | {words[1]}

    def earlier(path):
        path = Path(path)
        return Path(old) / path.relative_to(new) if path.is_relative_to(new) else path

    files = {str(earlier(path)) for path in read} & content
    entries = {
        (str(p.parent), p.name) for path in read for p in (earlier(path), *earlier(path).parents) if p != Path(old)
    }
    folders = {folder for folder, name in entries & names}
    place = len(before) - 1
    return [(place, each) for each in sorted(files | folders)] + [(place + 1, str(Path(new).parent))]
