def capability_report(probe: Probe) -> Report:
    """Which GPUs a process on this machine sees and can use."""
    everything = [str(number) for number in range(len(probe.gpus))]
    text = probe.cuda_visible_devices
    entries = everything if text is None else [entry.strip() for entry in text.split(",")]
    ends = next((place for place, entry in enumerate(entries) if entry not in everything), len(entries))
    shown = entries[:ends]
    visible = tuple(map(int, shown)) if len(set(shown)) == len(shown) else ()
    devices = tuple(i for i in visible if any(runs_on(arch, probe.gpus[i]) for arch in probe.archs))
    words = ("ready" if devices else "unsupported") if visible else "hidden"
    return Report(visible, devices, words if probe.gpus else "absent")
