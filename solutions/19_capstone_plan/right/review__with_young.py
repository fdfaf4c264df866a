def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    layout, machine = proposal.layout, proposal.machine
    nodes = layout.gpus // 8
    mtbf = proposal.node_mtbf / nodes
    interval = math.sqrt(2 * proposal.save * mtbf)
    share = interval / (math.exp(proposal.recovery / mtbf) * mtbf * math.expm1((interval + proposal.save) / mtbf))
    days = proposal.tokens / (layout.batch * layout.sequence) * proposal.step / share / DAY
    checks = [
        ("memory", max(stage.total for stage in memory(proposal.model, layout)) > 0.9 * machine.memory_bytes),
        ("links", proposal.inside > machine.inside.bandwidth * 1.05),
        ("step", proposal.step < step_time(proposal.model, machine, layout).seconds / 1.05),
        ("days", proposal.days < days / 1.05),
        ("cost", proposal.cost < proposal.days * 24 * layout.gpus * proposal.price / 1.05),
    ]
    return [name for name, bad in checks if bad]
