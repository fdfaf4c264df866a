def answer(ask: Ask) -> Offer | Refusal:
    """What you offer, or what it would take."""
    per_node, table = ask.machine.gpus_per_node, {}
    for nodes in ask.nodes:
        for layout in layouts(ask.model, ask.machine, nodes * per_node, ask.batch, ask.sequence)[:1]:
            interval = math.sqrt(2 * ask.save * ask.node_mtbf / nodes)
            table[nodes] = (layout, interval, *outcome(ask, nodes, layout, interval))
    fits = [n for n, (_, _, days, cost) in table.items() if days <= ask.days and cost <= ask.budget]
    if fits:
        fits.sort(key=lambda n: table[n][3])
        first, *others = fits
        return Offer(first, table[first][0], table[first][1], others[0] if others else None)
    days = [days for _, _, days, cost in table.values() if cost <= ask.budget]
    costs = [cost for _, _, days, cost in table.values() if days <= ask.days]
    return Refusal(min(days) if days else None, min(costs) if costs else None)
