def account(events: list[tuple[int, str]]) -> dict[str, int]:
    moments = [(0, "running"), *events]
    spent = {"useful": 0, "save": 0, "restart": 0}
    for (start, what), (end, following) in zip(moments, moments[1:], strict=False):
        length = end - start
        if what in ("save", "failed"):
            spent["save" if what == "save" else "restart"] += length
        elif following == "save":
            spent["useful"] += length * (
                moments[moments.index((end, following), moments.index((start, what))) + 1][1] == "saved"
            )
    return spent | {"lost": moments[-1][0] - sum(spent.values())}
