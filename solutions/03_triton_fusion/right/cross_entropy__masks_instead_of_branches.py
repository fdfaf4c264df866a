@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """An ignored row takes the same way as the others, with nothing loaded."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    counts = target != ignore_index
    at = tl.arange(0, BLOCK)
    m = tl.where(counts, -float("inf"), 0.0)
    s = tl.where(counts, 0.0, 1.0)
    picked = 0.0
    for first in range(0, vocabulary, BLOCK):
        inside = (first + at < vocabulary) & counts
        z = tl.load(logits + row * vocabulary + first + at, mask=inside, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(m, tl.max(z, axis=0))
        safe = tl.where(larger == -float("inf"), 0.0, larger)
        s = s * tl.exp(m - safe) + tl.sum(tl.exp(z - safe), axis=0)
        picked += tl.sum(tl.where((first + at == target) & inside, z, 0.0), axis=0)
        m = larger
    tl.store(losses + row, m + tl.log(s) - picked)
    for first in range(0, vocabulary, BLOCK):
        column = first + at
        z = tl.load(logits + row * vocabulary + column, mask=(column < vocabulary) & counts, other=-float("inf"))
        p = tl.exp(z.to(tl.float32) - m) / s
        d = tl.where((column == target) & counts, p - 1.0, p) * scale
        tl.store(gradient + row * vocabulary + column, d.to(gradient.dtype.element_ty), mask=column < vocabulary)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    if rows:
        cross_entropy_kernel[(rows,)](logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK=block)
    return losses, gradient
