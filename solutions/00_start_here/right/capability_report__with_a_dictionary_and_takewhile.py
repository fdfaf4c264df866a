from itertools import takewhile


def capability_report(probe: Probe) -> Report:
    number_of = {str(i): i for i in range(len(probe.gpus))}
    if probe.cuda_visible_devices is None:
        listed = list(number_of.values())
    else:
        entries = probe.cuda_visible_devices.replace(" ", "").split(",")
        listed = [number_of[entry] for entry in takewhile(number_of.__contains__, entries)]
        if sorted(set(listed)) != sorted(listed):
            listed = []
    usable = list(filter(lambda i: True in [runs_on(arch, probe.gpus[i]) for arch in probe.archs], listed))
    stages = (("absent", probe.gpus), ("hidden", listed), ("unsupported", usable), ("ready", (True,)))
    return Report(tuple(listed), tuple(usable), next((name for name, left in stages if not left), "ready"))
