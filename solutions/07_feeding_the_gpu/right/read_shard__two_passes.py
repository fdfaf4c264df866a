def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    rest, found, keys = data, [], []
    try:
        while any(head := rest[:512]) or len(head) < 512:
            name, contents, rest = first_file(rest)
            folder, slash, file = name.rpartition("/")
            stem, extension = file.split(".", 1)
            key = folder + slash + stem
            if keys[-1:] == [key] and any(extension == e for e, _ in found[-1]):
                raise RuntimeError("an extension twice", len(name))
            if keys[-1:] != [key]:
                keys.append(key)
                found.append([])
            found[-1].append((extension, contents))
            done = len(data) - len(rest)
    except (RuntimeError, ValueError) as error:
        at = done if found else 0
        raise CorruptShard(f"{shard}, byte {at}: {error}") from error
    return [Sample(key, dict(parts)) for key, parts in zip(keys, found, strict=True)]


def first_file(data):
    head = data[:512]
    if len(head) < 512:
        raise ValueError("data end where a header was expected")
    fields = [head[124:136], head[148:156]]
    for n, field in enumerate(fields):
        text = field.lstrip(b" ").replace(b"\0", b" ").split(b" ")[0]
        if not set(text) <= set(b"01234567"):
            raise ValueError("not octal")
        fields[n] = int(b"0" + text, 8)
    if fields[1] != sum(head[:148] + b" " * 8 + head[156:]):
        raise ValueError("checksum")
    if head[156:157] != b"0" and head[156] != 0:
        raise ValueError("no regular file")
    end = 512 + fields[0]
    if len(data) < end:
        raise ValueError("contents end early")
    return head[:100].strip(b"\0").decode(), data[512:end], data[(end + 511) // 512 * 512 :]
