def adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor:
    """The parameter after one AdamW step whose moments lie in `folder`."""
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    n, result = parameter.numel(), parameter.detach().clone()
    Path(folder).mkdir(parents=True, exist_ok=True)
    stored = []
    for name in ("exp_avg.bin", "exp_avg_sq.bin"):
        path = Path(folder, name)
        if step == 1:
            np.zeros(n, np.float32).tofile(path)
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing")
        if path.stat().st_size != 4 * n:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, expected {4 * n}")
        stored.append(np.memmap(path, np.float32, mode="r+"))
    for first in range(0, n, chunk):
        last = min(first + chunk, n)
        p, g = result.view(-1)[first:last], gradient.detach().view(-1)[first:last]
        m, v = (torch.from_numpy(each[first:last]) for each in stored)
        p.mul_(1 - options.lr * options.weight_decay)
        m.lerp_(g, 1 - options.beta1)
        v.mul_(options.beta2).addcmul_(g, g, value=1 - options.beta2)
        denominator = (v.sqrt() / (1 - options.beta2**step) ** 0.5).add_(options.eps)
        p.addcdiv_(m, denominator, value=-options.lr / (1 - options.beta1**step))
    for each in stored:
        each.flush()
    return result
