def call_seconds(bytes_moved, overhead, bandwidth):
    seconds_per_byte = 1.0 / bandwidth
    return math.fsum([overhead, bytes_moved * seconds_per_byte])
