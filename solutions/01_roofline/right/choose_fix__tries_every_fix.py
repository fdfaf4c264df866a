def applied(trace, fix, roof):
    calls, waited = [], True
    for call in trace:
        compute, memory = call.flops / roof.peak_flops * 1e6, call.bytes / roof.bandwidth * 1e6
        floor = max(compute, memory)
        if fix == "CUDA graph" and not waited:
            call = replace(call, issue_us=0.5)
        elif fix == "faster format" and compute >= memory and compute >= 0.6 * call.busy_us:
            call = replace(call, busy_us=call.busy_us / 2)
        elif fix == "better kernels" and floor < 0.6 * call.busy_us:
            call = replace(call, busy_us=floor / 0.8)
        low = call.flops < 10 * call.bytes
        if fix == "fusion" and low and calls and not waited and calls[-1].flops < 10 * calls[-1].bytes:
            calls[-1] = replace(calls[-1], busy_us=max(calls[-1].busy_us, call.busy_us), waits=call.waits)
        else:
            calls.append(call)
        waited = call.waits
        if fix == "no waiting":
            calls[-1] = replace(calls[-1], waits=False)
    return wall_us(calls)


def choose_fix(trace, roof):
    return min(FIXES, key=lambda fix: applied(trace, fix, roof))
