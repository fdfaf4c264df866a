# expect: claims found wrong for
# fails: claims
def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    model, machine, layout = proposal.model, proposal.machine, proposal.layout
    nodes = layout.gpus // machine.gpus_per_node
    work = proposal.tokens / (layout.batch * layout.sequence) * proposal.step
    interval = best_interval(proposal.save, proposal.node_mtbf)
    days = run_days(work, 1, proposal.node_mtbf, proposal.save, proposal.recovery, interval)
    used = max(each.total for each in memory(model, layout))
    found = {
        "memory": used > ALLOCATED_SHARE * machine.memory_bytes,
        "links": proposal.inside > 1.05 * machine.inside.bandwidth,
        "step": proposal.step < step_time(model, machine, layout).seconds / 1.05,
        "days": proposal.days < days / 1.05,
        "cost": proposal.cost < proposal.days * 24 * layout.gpus * proposal.price / 1.05,
    }
    return [name for name, is_there in found.items() if is_there]
