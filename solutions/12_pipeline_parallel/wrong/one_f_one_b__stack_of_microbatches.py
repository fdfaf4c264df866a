# expect: backwards are not in the order
# fails: rows, few
def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    rows = []
    for rank in range(ranks):
        row, forwards, backwards = [], 0, 0
        while backwards < microbatches:
            if forwards < microbatches and forwards - backwards < ranks - rank:
                row.append(("F", forwards))
                forwards += 1
            else:
                row.append(("B", backwards))
                backwards += 1
        order = iter([i for _, i in row if _ == "B"][::-1])
        rows.append([("B", next(order)) if kind == "B" else (kind, i) for kind, i in row])
    return rows
