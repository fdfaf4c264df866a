# expect: step and skipped, steps 1 to 4
# fails: damage
def newest_whole(folder: Path) -> tuple[int, dict, dict[str, bytes], list[str]]:
    """The newest checkpoint of which every byte is as it was written."""
    skipped = []
    for step in sorted((int(p.name[5:]) for p in folder.glob("step-*") if p.name[5:].isdigit()), reverse=True):
        place = folder / f"step-{step}"
        try:
            line, sealed = (place / "manifest.json").read_bytes().split(b"\n")[:2]
            if digest(line) != sealed.decode():
                raise ValueError("the manifest is damaged")
            manifest = json.loads(line)
            files = {name: (place / name).read_bytes() for name in manifest["files"]}
            if any(digest(files[name]) != entry["sha256"] for name, entry in manifest["files"].items()):
                raise ValueError("a file is damaged")
            return step, manifest["values"], files, sorted(skipped)
        except (OSError, ValueError):
            skipped.append(place.name)
    raise LookupError(f"no whole checkpoint; skipped: {skipped}")
