def adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor:
    """The parameter after one AdamW step whose moments lie in `folder`."""
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    n = parameter.numel()
    Path(folder).mkdir(parents=True, exist_ok=True)
    moments = []
    for path in (Path(folder) / "exp_avg.bin", Path(folder) / "exp_avg_sq.bin"):
        if step == 1:
            path.write_bytes(bytes(4 * n))
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing")
        if path.stat().st_size != 4 * n:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, expected {4 * n}")
        moments.append(torch.from_file(str(path), shared=True, size=n, dtype=torch.float32))
    result = parameter.detach().clone()
    pieces = [t.view(-1).split(chunk) for t in (result, gradient.detach(), *moments)]
    for p, g, m, v in zip(*pieces, strict=True):
        p.mul_(1 - options.lr * options.weight_decay)
        m.lerp_(g, 1 - options.beta1)
        v.mul_(options.beta2).addcmul_(g, g, value=1 - options.beta2)
        denominator = (v.sqrt() / (1 - options.beta2**step) ** 0.5).add_(options.eps)
        p.addcdiv_(m, denominator, value=-options.lr / (1 - options.beta1**step))
    return result
