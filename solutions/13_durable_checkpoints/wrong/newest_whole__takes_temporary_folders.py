# expect: and other names
# fails: whole
def newest_whole(folder: Path) -> tuple[int, dict, dict[str, bytes], list[str]]:
    """The newest checkpoint of which every byte is as it was written."""
    steps = sorted(
        (int(p.name[5:].partition(".")[0]) for p in folder.glob("step-*") if p.name[5:6].isdigit()), reverse=True
    )
    skipped = []
    for step in steps:
        place = folder / f"step-{step}"
        try:
            line, sealed = (place / "manifest.json").read_bytes().split(b"\n")[:2]
            if digest(line) != sealed.decode():
                raise ValueError("the manifest is damaged")
            manifest = json.loads(line)
            files = {name: (place / name).read_bytes() for name in manifest["files"]}
            for name, entry in manifest["files"].items():
                if digest(files[name]) != entry["sha256"]:
                    raise ValueError(f"{name} is damaged")
            return step, manifest["values"], files, skipped
        except (OSError, ValueError):
            skipped.append(place.name)
    raise LookupError(f"no whole checkpoint; skipped: {', '.join(skipped) or 'nothing, there is none'}")
