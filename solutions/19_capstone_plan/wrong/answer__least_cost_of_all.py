# expect: the least cost among those in time
# fails: refusals
def answer(ask: Ask) -> Offer | Refusal:
    """What you offer, or what it would take."""
    options = []
    for nodes in ask.nodes:
        found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
        if found:
            interval = best_interval(ask.save, ask.node_mtbf / nodes)
            days, cost = outcome(ask, nodes, found[0], interval)
            options.append((cost, days, nodes, found[0], interval))
    good = sorted((each for each in options if each[0] <= ask.budget and each[1] <= ask.days), key=lambda each: each[0])
    if good:
        _, _, nodes, layout, interval = good[0]
        return Offer(nodes, layout, interval, good[1][2] if len(good) > 1 else None)
    return Refusal(
        min((days for cost, days, *_ in options if cost <= ask.budget), default=None),
        min((cost for cost, days, *_ in options), default=None),
    )
