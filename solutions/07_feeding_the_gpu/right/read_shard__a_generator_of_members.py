import re
from itertools import groupby

_NUMBER = re.compile(rb" *([0-7]*)(?:[\0 ].*)?", re.S)


def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    samples = []
    for key, members in groupby(members_of(shard, data), key=lambda member: member[1]):
        parts = {}
        for offset, _, extension, contents in members:
            if extension in parts:
                raise CorruptShard(f"{shard}, byte {offset}: {extension} twice in {key}")
            parts[extension] = contents
        samples.append(Sample(key, parts))
    return samples


def members_of(shard, data):
    offset = 0
    while head := data[offset : offset + 512].ljust(512, b"?"):
        if head == bytes(512):
            return
        whole = len(data) >= offset + 512
        size, checksum = (_NUMBER.fullmatch(field) for field in (head[124:136], head[148:156]))
        if not whole or not size or not checksum or head[156] not in b"0\0":
            raise CorruptShard(f"{shard}, byte {offset}: this is no header of a file")
        if int(checksum[1] or b"0", 8) != sum(head[:148]) + 256 + sum(head[156:]):
            raise CorruptShard(f"{shard}, byte {offset}: checksum")
        begin, length = offset + 512, int(size[1] or b"0", 8)
        if begin + length > len(data):
            raise CorruptShard(f"{shard}, byte {offset}: cut")
        try:
            path = head[:100].partition(b"\0")[0].decode().split("/")
            stem, extension = path[-1].split(".", 1)
        except ValueError as error:
            raise CorruptShard(f"{shard}, byte {offset}: name") from error
        yield offset, "/".join([*path[:-1], stem]), extension, data[begin : begin + length]
        offset = begin + -(-length // 512) * 512
