# expect: a cheaper one meets it too
# fails: offers, refusals
def answer(ask: Ask) -> Offer | Refusal:
    """What you offer, or what it would take."""
    options = []
    for nodes in ask.nodes:
        found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
        if found:
            interval = 3600.0
            days, cost = outcome(ask, nodes, found[0], interval)
            options.append((cost, days, nodes, found[0], interval))
    options.sort(key=lambda row: row[0])
    good = [row for row in options if row[0] <= ask.budget and row[1] <= ask.days]
    if good:
        _, _, nodes, layout, interval = good[0]
        return Offer(nodes, layout, interval, good[1][2] if len(good) > 1 else None)
    return Refusal(
        min((row[1] for row in options if row[0] <= ask.budget), default=None),
        min((row[0] for row in options if row[1] <= ask.days), default=None),
    )
