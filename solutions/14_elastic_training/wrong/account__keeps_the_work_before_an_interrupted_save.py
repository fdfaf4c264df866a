# expect: the save after it does not hold it
# fails: strikes
def account(events: list[tuple[int, str]]) -> dict[str, int]:
    """Where the seconds of a run went."""
    spent = {"useful": 0, "lost": 0, "save": 0, "restart": 0}
    doing, since, unsaved = "work", 0, 0
    for at, what in events:
        if doing == "work":
            unsaved += at - since
        else:
            spent[doing] += at - since
        if what == "saved":
            spent["useful"] += unsaved
            unsaved = 0
        elif what == "end" or (what == "failed" and doing == "work"):
            spent["lost"] += unsaved
            unsaved = 0
        doing, since = {"save": "save", "failed": "restart"}.get(what, "work"), at
    return spent
