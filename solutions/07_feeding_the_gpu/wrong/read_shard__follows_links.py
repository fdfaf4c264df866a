# expect: a link.tar
# fails: damage
def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    samples, offset = [], 0
    while True:
        head, place = data[offset : offset + 512], f"{shard}, byte {offset}"
        if len(head) < 512:
            raise CorruptShard(f"{place}: {len(head)} bytes where a header or the end was expected")
        if not any(head):
            return samples
        size, stored = octal(head[124:136], place), octal(head[148:156], place)
        if stored != sum(head) - sum(head[148:156]) + 8 * 32:
            raise CorruptShard(f"{place}: the checksum of this header is wrong")
        try:
            name = head[:100].rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise CorruptShard(f"{place}: the name is not UTF-8") from None
        if head[156:157] not in (b"0", b"\0", b"1", b"2"):
            raise CorruptShard(f"{place}: {name} is no regular file")
        contents = data[offset + 512 : offset + 512 + size]
        if len(contents) < size:
            raise CorruptShard(f"{place}: {name} has {len(contents)} of {size} bytes")
        folder, slash, file = name.rpartition("/")
        stem, dot, extension = file.partition(".")
        if not dot:
            raise CorruptShard(f"{place}: {name} has no extension")
        key = folder + slash + stem
        if not samples or samples[-1].key != key:
            samples.append(Sample(key, {}))
        if extension in samples[-1].parts:
            raise CorruptShard(f"{place}: sample {key} already has a part {extension}")
        samples[-1].parts[extension] = contents
        offset += 512 + size + -size % 512


def octal(field: bytes, place: str) -> int:
    text = field.lstrip(b" ").replace(b"\0", b" ").partition(b" ")[0]
    if text.strip(b"01234567"):  # int() would also take a sign, an underscore and "0o"
        raise CorruptShard(f"{place}: the numbers of this header are not octal")
    return int(text or b"0", 8)
