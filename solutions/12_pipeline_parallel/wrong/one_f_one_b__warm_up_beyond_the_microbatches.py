# expect: rank 0 of one_f_one_b(4, 2)
# fails: few
def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    rows = []
    for rank in range(ranks):
        ahead = ranks - rank - 1
        row = [("F", i) for i in range(ahead)]
        for i in range(microbatches):
            row += [("F", i + ahead)] * (i + ahead < microbatches) + [("B", i)]
        rows.append(row)
    return rows
