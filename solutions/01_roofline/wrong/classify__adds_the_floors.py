# expect: their floors are not added up
# caught: hidden
def classify(measured: Measured, machine: Machine) -> Verdict:
    """What limits the operation on this machine, by the four rules."""
    if not measured.device_us > 0:
        raise ValueError(f"device_us = {measured.device_us}: expected a positive time in µs")
    if measured.launches < 1:
        raise ValueError(f"launches = {measured.launches}: expected at least one")
    for name, count in (("flops", measured.flops), ("bytes", measured.bytes)):
        if count < 0:
            raise ValueError(f"{name} = {count}: expected at least 0")

    compute = measured.flops / machine.peak_flops * 1e6
    memory = measured.bytes / machine.bandwidth * 1e6
    launch = measured.launches * machine.launch_us
    roof, floor = ("compute", compute) if compute >= memory else ("memory", memory)
    if floor > 1.05 * measured.device_us:
        bound = "impossible"
    elif launch > measured.device_us:
        bound, floor = "overhead", launch
    elif compute + memory >= 0.6 * measured.device_us:
        bound = roof
    else:
        bound = "unexplained"
    return Verdict(bound, floor, floor / measured.device_us)
