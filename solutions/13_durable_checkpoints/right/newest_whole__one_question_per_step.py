def newest_whole(folder: Path) -> tuple[int, dict, dict[str, bytes], list[str]]:
    """A helper that returns None for what is not whole."""
    found = {}
    for path in folder.iterdir():
        head, dash, number = path.name.partition("-")
        if head == "step" and dash and number.isdecimal() and path.is_dir():
            found[int(number)] = path
    skipped = []
    while found:
        step = max(found)
        path = found.pop(step)
        whole = _read(path)
        if whole is not None:
            return step, whole[0], whole[1], skipped
        skipped.append(path.name)
    raise KeyError(" ".join(skipped))


def _read(path):
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return None
    first, _, second = manifest.read_bytes().partition(b"\n")
    if second.strip() != digest(first).encode():
        return None
    told = json.loads(first)
    files = {}
    for name, entry in told["files"].items():
        file = path / name
        if not file.is_file() or file.stat().st_size != entry["size"]:
            return None
        files[name] = file.read_bytes()
        if digest(files[name]) != entry["sha256"]:
            return None
    return told["values"], files
