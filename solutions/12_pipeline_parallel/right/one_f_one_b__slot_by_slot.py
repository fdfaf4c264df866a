def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    rows, sent = [[] for _ in range(ranks)], {("F", -1, i) for i in range(microbatches)}
    sent |= {("B", ranks, i) for i in range(microbatches)}
    counts = [{"F": 0, "B": 0} for _ in range(ranks)]
    for _ in range(2 * (microbatches + ranks)):
        made = []
        for rank in range(ranks):
            f, b = counts[rank]["F"], counts[rank]["B"]
            if f < microbatches and f - b < ranks - rank:
                if ("F", rank - 1, f) in sent:
                    made.append(("F", rank, f))
            elif b < f and ("B", rank + 1, b) in sent:
                made.append(("B", rank, b))
        for kind, rank, i in made:
            rows[rank].append((kind, i))
            counts[rank][kind] += 1
        sent.update(made)
    return rows
