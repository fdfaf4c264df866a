def place_syncs(operations: list[tuple], read: list[str]) -> list[tuple[int, str]]:
    """What is needed are contents and pairs of a folder and a name."""
    *before, (_, old, new) = operations
    content, names = set(), set()

    def moved(path, source, target):
        inside = Path(path).is_relative_to(source)
        return str(Path(target) / Path(path).relative_to(source)) if inside else path

    for kind, *words in before:
        if kind == "write":
            content |= {words[0]}
            continue
        if kind == "rename":
            content = {moved(path, *words) for path in content}
            names = {(moved(folder, *words), name) for folder, name in names}
        names |= {(str(Path(words[-1]).parent), Path(words[-1]).name)}

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
