# expect: so the step takes longer
# fails: rows, few
def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    rows = []
    for rank in range(ranks):
        row, forwards, backwards = [], 0, 0
        while backwards < microbatches:
            if forwards < microbatches and forwards - backwards <= rank:
                row.append(("F", forwards))
                forwards += 1
            else:
                row.append(("B", backwards))
                backwards += 1
        rows.append(row)
    return rows
