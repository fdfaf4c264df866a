def account(events: list[tuple[int, str]]) -> dict[str, int]:
    useful = lost = save = restart = 0
    working_since, saving_since, down_since, pending = 0, None, None, 0
    for at, what in events:
        if what == "save":
            pending += at - working_since
            working_since, saving_since = None, at
        elif what == "saved":
            save += at - saving_since
            useful += pending
            working_since, saving_since, pending = at, None, 0
        elif what == "running":
            restart += at - down_since
            working_since, down_since = at, None
        else:
            if working_since is not None:
                pending += at - working_since
            if saving_since is not None:
                save += at - saving_since
            if down_since is not None:
                restart += at - down_since
            lost += pending
            working_since, saving_since, down_since, pending = None, None, at, 0
    return {"useful": useful, "lost": lost, "save": save, "restart": restart}
