def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    file, samples, offset = io.BytesIO(data), [], 0

    def refuse(why):
        raise CorruptShard(f"{shard}, byte {offset}: {why}")

    def number(field):
        text = field.decode("latin-1").lstrip(" ").split("\0")[0].split(" ")[0]
        if any(digit not in "01234567" for digit in text):
            refuse(f"{text!r} is not octal")
        return int(text, 8) if text else 0

    while True:
        offset = file.tell()
        head = bytearray(file.read(512))
        if len(head) < 512:
            refuse("no header")
        if head.count(0) == 512:
            return samples
        size, said = number(head[124:136]), number(head[148:156])
        head[148:156] = b" " * 8
        if said != sum(head):
            refuse("checksum")
        if head[156] not in (0, ord("0")):
            refuse("no file")
        contents = file.read(size)
        if len(contents) != size:
            refuse("contents end early")
        file.seek(-size % 512, io.SEEK_CUR)
        name = bytes(head[:100]).rstrip(b"\0").decode(errors="replace")
        dot = name.find(".", name.rfind("/") + 1)
        if dot < 0 or "\ufffd" in name:
            refuse("no name")
        key, extension = name[:dot], name[dot + 1 :]
        if samples and samples[-1].key == key:
            if extension in samples[-1].parts:
                refuse("an extension twice")
            samples[-1].parts[extension] = contents
        else:
            samples.append(Sample(key, {extension: contents}))
