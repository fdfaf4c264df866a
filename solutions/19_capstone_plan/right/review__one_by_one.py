def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    faults = []
    layout = proposal.layout
    stages = memory(proposal.model, layout)
    if any(stage.total > ALLOCATED_SHARE * proposal.machine.memory_bytes for stage in stages):
        faults.append("memory")
    if proposal.inside / proposal.machine.inside.bandwidth > 1.05:
        faults.append("links")
    if proposal.step * 1.05 < step_time(proposal.model, proposal.machine, layout).seconds:
        faults.append("step")
    count = layout.gpus / proposal.machine.gpus_per_node
    mtbf = proposal.node_mtbf / count
    steps = proposal.tokens / layout.batch / layout.sequence
    share = useful_share(best_interval(proposal.save, mtbf), proposal.save, proposal.recovery, mtbf)
    if proposal.days * 1.05 < steps * proposal.step / share / 86400:
        faults.append("days")
    if proposal.cost * 1.05 < proposal.days * 24 * layout.gpus * proposal.price:
        faults.append("cost")
    return faults
