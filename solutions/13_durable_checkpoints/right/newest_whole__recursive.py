def newest_whole(folder: Path, before=None) -> tuple[int, dict, dict[str, bytes], list[str]]:
    """The newest step below `before`, or what there is below that."""
    steps = [int(p.name.removeprefix("step-")) for p in folder.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    steps = [step for step in steps if before is None or step < before]
    if not steps:
        raise LookupError("no checkpoint is whole")
    step = max(steps)
    name = f"step-{step}"
    try:
        line, seal, *_ = (folder / name / "manifest.json").read_text(errors="replace").split("\n")
        assert seal == digest(line.encode())
        told, files = json.loads(line), {}
        for each, entry in told["files"].items():
            files[each] = (folder / name / each).read_bytes()
            assert (len(files[each]), digest(files[each])) == (entry["size"], entry["sha256"])
        return step, told["values"], files, []
    except (OSError, ValueError, AssertionError):
        try:
            older, values, files, skipped = newest_whole(folder, step)
        except LookupError as error:
            raise LookupError(f"{name} is not whole; {error}") from None
        return older, values, files, [name, *skipped]
