# Always raises, with all numbers and places in the message.


def throughput(bytes_moved, seconds, warmup):
    places = " ".join(f"seconds[{place}]" for place in range(9))
    raise ValueError(f"{len(bytes_moved)} and {len(seconds)}, {places}, warmup = {warmup}")
