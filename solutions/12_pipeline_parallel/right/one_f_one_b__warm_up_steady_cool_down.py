def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    rows = []
    for rank in range(ranks):
        ahead = min(ranks - rank - 1, microbatches)
        row = [("F", i) for i in range(ahead)]
        for i in range(ahead, microbatches):
            row += [("F", i), ("B", i - ahead)]
        rows.append(row + [("B", i) for i in range(microbatches - ahead, microbatches)])
    return rows
