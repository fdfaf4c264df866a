import re


def can_run(archs, gpu):
    for arch in archs:
        kind, major, minor = re.fullmatch(r"(sm|compute)_(\d+)(\d)", arch).groups()
        needed = (int(major), int(minor))
        if gpu >= needed and (kind == "compute" or gpu[0] == needed[0]):
            return True
    return False


def seen(text, count):
    if text is None:
        return tuple(range(count))
    numbers = []
    for entry in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*", entry)
        if not found or int(found[1]) >= count:
            return tuple(numbers)
        if int(found[1]) in numbers:
            return ()
        numbers.append(int(found[1]))
    return tuple(numbers)


def capability_report(probe: Probe) -> Report:
    visible = seen(probe.cuda_visible_devices, len(probe.gpus))
    devices = tuple(i for i in visible if can_run(probe.archs, probe.gpus[i]))
    if devices:
        return Report(visible, devices, "ready")
    if visible:
        return Report(visible, devices, "unsupported")
    return Report(visible, devices, "hidden" if probe.gpus else "absent")
