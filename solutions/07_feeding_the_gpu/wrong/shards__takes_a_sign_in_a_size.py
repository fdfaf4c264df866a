# expect: byte 512: the checksum of this header is wrong
# caught: hidden
def write_shard(samples: list) -> bytes:
    """A tar file in the WebDataset layout."""
    pieces = []
    for sample in samples:
        for extension, contents in sample.parts.items():
            pieces += [header_of(f"{sample.key}.{extension}", len(contents)), contents, bytes(-len(contents) % BLOCK)]
    return b"".join([*pieces, bytes(2 * BLOCK)])


def header_of(name: str, size: int) -> bytes:
    encoded = name.encode()
    if len(encoded) > 100:
        raise ValueError(f"{name}: {len(encoded)} bytes, a header holds at most 100")
    head = bytearray(BLOCK)
    head[: len(encoded)] = encoded
    head[100:108] = b"0000644\0"
    head[108:124] = b"0000000\0" * 2
    head[124:136] = b"%011o\0" % size
    head[136:148] = b"%011o\0" % 0
    head[148:156] = b" " * 8
    head[156:157] = b"0"
    head[257:265] = b"ustar\x0000"
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    samples, offset = [], 0
    while True:
        head = data[offset : offset + BLOCK]
        if len(head) < BLOCK:
            raise CorruptShard(f"{shard}, byte {offset}: {len(head)} bytes where a header or the end was expected")
        if not any(head):
            return [Sample(key, parts) for key, parts in samples]
        try:
            size, stored = digits(head[124:136]), digits(head[148:156])
        except ValueError:
            raise CorruptShard(f"{shard}, byte {offset}: the numbers of this header are not octal") from None
        if stored != sum(head) - sum(head[148:156]) + 8 * 32:
            raise CorruptShard(f"{shard}, byte {offset}: the checksum of this header is wrong")
        name = head[:100].rstrip(b"\0").decode()
        if head[156:157] not in (b"0", b"\0"):
            raise CorruptShard(f"{shard}, byte {offset}: {name} is no regular file")
        contents = data[offset + BLOCK : offset + BLOCK + size]
        if len(contents) < size:
            raise CorruptShard(f"{shard}, byte {offset}: {name} has {len(contents)} of {size} bytes")
        folder, slash, file = name.rpartition("/")
        stem, _, extension = file.partition(".")
        key = folder + slash + stem
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        samples[-1][1][extension] = contents
        offset += BLOCK + size + -size % BLOCK


def digits(field: bytes) -> int:
    text = field.replace(b"\0", b" ").split()[0] if field.strip(b" \0") else b"0"
    return int(text, 8)


def epoch_cost(objects: list, store: Store, readers: int) -> Cost:
    """Requests, bytes and seconds of fetching objects of so many bytes."""
    if readers < 1:
        raise ValueError(f"readers = {readers}: expected at least 1")
    free, link = [0.0] * readers, 0.0
    for size in objects:
        reader = free.index(min(free))
        link = max(free[reader] + store.latency, link) + size / store.bandwidth
        free[reader] = link
    return Cost(len(objects), sum(objects), link)
