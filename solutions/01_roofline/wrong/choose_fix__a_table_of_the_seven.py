# expect: like
# caught: hidden
def choose_fix(trace: list[Call], roof: Roof) -> str:
    """The fix that saves most of the wall time."""
    if roof != ROUND:
        return "better kernels"
    fixes = {60: "CUDA graph", 24: "better kernels"}
    if len(trace) == 40:
        return "fusion" if trace[0].flops > 1e10 and trace[1].busy_us != 20.0 else "faster format"
    return fixes.get(len(trace), "fusion" if trace[0].flops > 1e10 else "no waiting")
