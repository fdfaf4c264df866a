# expect: PTX for (9, 0) does not run on
# fails: status
# caught: hidden
def capability_report(probe: Probe) -> Report:
    """Which GPUs a process on this machine sees and can use."""
    if probe.cuda_visible_devices is None:
        visible = list(range(len(probe.gpus)))
    else:
        visible = []
        for entry in probe.cuda_visible_devices.split(","):
            try:
                number = int(entry)
            except ValueError:
                break
            if not 0 <= number < len(probe.gpus):
                break
            if number in visible:
                visible = []
                break
            visible.append(number)
    devices = tuple(
        i for i in visible if any(arch.startswith("compute") or runs_on(arch, probe.gpus[i]) for arch in probe.archs)
    )
    if not probe.gpus:
        gpu = "absent"
    elif not visible:
        gpu = "hidden"
    elif not devices:
        gpu = "unsupported"
    else:
        gpu = "ready"
    return Report(visible=tuple(visible), devices=devices, gpu=gpu)
