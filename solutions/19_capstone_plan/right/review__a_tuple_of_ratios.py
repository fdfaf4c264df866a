def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    layout, machine = proposal.layout, proposal.machine
    nodes = -(-layout.gpus // machine.gpus_per_node)
    work = proposal.tokens / (layout.batch * layout.sequence) * proposal.step
    best = best_interval(proposal.save, proposal.node_mtbf / nodes)
    ratios = {
        "memory": max(each.total for each in memory(proposal.model, layout)) / machine.memory_bytes / ALLOCATED_SHARE,
        "links": proposal.inside / machine.inside.bandwidth / 1.05,
        "step": step_time(proposal.model, machine, layout).seconds / proposal.step / 1.05,
        "days": run_days(work, nodes, proposal.node_mtbf, proposal.save, proposal.recovery, best)
        / proposal.days
        / 1.05,
        "cost": proposal.days * 24 * layout.gpus * proposal.price / proposal.cost / 1.05,
    }
    return tuple(name for name in ratios if ratios[name] > 1)
