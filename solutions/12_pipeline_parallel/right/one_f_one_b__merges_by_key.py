def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""

    def row(rank):
        """Each backward follows the forward with which the rank is full."""
        actions = [((2 * i, "F"), ("F", i)) for i in range(microbatches)]
        actions += [((2 * (i + ranks - rank - 1) + 1, "B"), ("B", i)) for i in range(microbatches)]
        return [action for _, action in sorted(actions)]

    return [row(rank) for rank in range(ranks)]
