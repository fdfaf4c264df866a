# expect: the order of the list
def capability_report(probe: Probe) -> Report:
    """What a machine with this record can do."""
    if probe.cuda_visible_devices is None:
        visible = list(range(len(probe.gpus)))
    else:
        visible = []
        for entry in probe.cuda_visible_devices.split(","):
            try:
                device = int(entry)
            except ValueError:
                break
            if not 0 <= device < len(probe.gpus):
                break
            if device in visible:
                visible = []
                break
            visible.append(device)
    devices = tuple(i for i in sorted(visible) if any(runs_on(arch, probe.gpus[i]) for arch in probe.archs))
    if not probe.gpus:
        gpu = "absent"
    elif not visible:
        gpu = "hidden"
    elif not devices:
        gpu = "unsupported"
    else:
        gpu = "ready"
    return Report(
        interpreter=None not in (probe.torch, probe.triton, probe.numpy),
        compiler=probe.triton is not None and probe.cxx,
        ranks=min(4, max(2, probe.cores)) if probe.gloo else 0,
        devices=devices,
        gpu=gpu,
    )
