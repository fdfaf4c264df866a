# expect: the best interval is that of a job which fails this often
# fails: claims
def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    p = proposal
    faults = []
    if max(each.total for each in memory(p.model, p.layout)) > ALLOCATED_SHARE * p.machine.memory_bytes:
        faults.append("memory")
    if p.inside > 1.05 * p.machine.inside.bandwidth:
        faults.append("links")
    if p.step < step_time(p.model, p.machine, p.layout).seconds / 1.05:
        faults.append("step")
    nodes = p.layout.gpus // p.machine.gpus_per_node
    work = p.tokens / (p.layout.batch * p.layout.sequence) * p.step
    days = run_days(work, nodes, p.node_mtbf, p.save, p.recovery, best_interval(p.save, p.node_mtbf / p.layout.gpus))
    if p.days < days / 1.05:
        faults.append("days")
    if p.cost < p.days * 24 * p.layout.gpus * p.price / 1.05:
        faults.append("cost")
    return faults
