def all_reduce_seconds(algorithm, elements, element_size, ranks, alpha, beta):
    def message(count):
        return alpha + count * element_size / beta

    match algorithm:
        case "naive":
            return message(elements * (ranks - 1)) + message((ranks - 1) * elements)
        case "ring":
            return sum(message((elements + ranks - 1) // ranks) for _ in range(2 * (ranks - 1)))
        case "doubling":
            steps, reached = 0, 1
            while reached < ranks:
                steps, reached = steps + 1, 2 * reached
            if reached > ranks:
                raise ValueError(f"ranks = {ranks} is between two powers of two")
            return steps * message(elements)


def fastest_all_reduce(elements, element_size, ranks, alpha, beta):
    best, least = "naive", all_reduce_seconds("naive", elements, element_size, ranks, alpha, beta)
    for name in ("ring", "doubling"):
        if name == "doubling" and 2 ** (ranks.bit_length() - 1) != ranks:
            break
        seconds = all_reduce_seconds(name, elements, element_size, ranks, alpha, beta)
        if seconds < least:
            best, least = name, seconds
    return best
