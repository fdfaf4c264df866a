def answer(ask: Ask) -> Offer | Refusal:
    """What you offer, or what it would take."""
    first = second = None
    days_at_budget = cost_in_time = None
    for nodes in ask.nodes:
        found = layouts(ask.model, ask.machine, 8 * nodes, ask.batch, ask.sequence)
        if not found:
            continue
        interval = best_interval(ask.save, ask.node_mtbf / nodes)
        days, cost = outcome(ask, nodes, found[0], interval)
        if cost <= ask.budget and (days_at_budget is None or days < days_at_budget):
            days_at_budget = days
        if days <= ask.days and (cost_in_time is None or cost < cost_in_time):
            cost_in_time = cost
        if cost <= ask.budget and days <= ask.days:
            row = (cost, nodes, found[0], interval)
            if first is None or cost < first[0]:
                first, second = row, first
            elif second is None or cost < second[0]:
                second = row
    if first is None:
        return Refusal(days_at_budget, cost_in_time)
    return Offer(first[1], first[2], first[3], second and second[1])
