def answer(ask: Ask) -> Offer | Refusal:
    """What you offer, or what it would take."""
    rows = []
    for nodes in sorted(ask.nodes):
        steps = plans(ask.model, ask.machine, 8 * nodes, ask.batch, ask.sequence, context=False, chunks=(1,))
        steps = [each for each in steps if each.plan.recompute != "selective"]
        if steps:
            mtbf = ask.node_mtbf / nodes
            interval = best_interval(ask.save, mtbf)
            work = ask.tokens / ask.batch / ask.sequence * steps[0].seconds
            days = work / useful_share(interval, ask.save, ask.recovery, mtbf) / DAY
            rows.append((days * 24 * 8 * nodes * ask.price, days, nodes, steps[0].plan, interval))
    rows.sort(key=lambda row: row[0])
    good = [row for row in rows if row[0] <= ask.budget and row[1] <= ask.days]
    if not good:
        cheap, quick = [row[1] for row in rows if row[0] <= ask.budget], [row[0] for row in rows if row[1] <= ask.days]
        return Refusal(min(cheap, default=None), min(quick, default=None))
    next_best = None if len(good) == 1 else good[1][2]
    return Offer(good[0][2], good[0][3], good[0][4], next_best)
