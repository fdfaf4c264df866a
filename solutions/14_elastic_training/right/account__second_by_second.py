def account(events: list[tuple[int, str]]) -> dict[str, int]:
    fate, doing, since = [], "open", 0
    for at, what in events:
        fate += [doing] * (at - since)
        since = at
        if what in ("saved", "failed", "end"):
            fate = [("useful" if what == "saved" else "lost") if kind == "open" else kind for kind in fate]
        doing = "save" if what == "save" else "restart" if what == "failed" else "open"
    return {kind: fate.count(kind) for kind in ("useful", "lost", "save", "restart")}
