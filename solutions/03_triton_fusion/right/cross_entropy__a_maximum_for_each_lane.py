@triton.jit
def zeros(gradient, vocabulary, BLOCK: tl.constexpr):
    """A gradient of zeros."""
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(gradient + at, tl.zeros((BLOCK,), tl.float32).to(gradient.dtype.element_ty), mask=at < vocabulary)


@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """Each lane keeps a maximum and a sum of its own."""
    row = tl.program_id(0)
    target = tl.load(targets + row)
    logits += row * vocabulary
    gradient += row * vocabulary
    if target == ignore_index:
        zeros(gradient, vocabulary, BLOCK)
        tl.store(losses + row, 0.0)
        return
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        z = tl.load(logits + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(m, z)
        safe = tl.where(larger == -float("inf"), 0.0, larger)
        s = s * tl.exp(m - safe) + tl.exp(z - safe)
        m = larger
    top = tl.max(m, axis=0)
    lse = top + tl.log(tl.sum(s * tl.exp(m - top), axis=0))
    tl.store(losses + row, lse - tl.load(logits + target).to(tl.float32))
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        z = tl.load(logits + at, mask=at < vocabulary, other=0.0).to(tl.float32)
        d = scale * tl.exp(z - lse) - tl.where(at == target, scale, 0.0)
        tl.store(gradient + at, d.to(gradient.dtype.element_ty), mask=at < vocabulary)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    if rows:
        cross_entropy_kernel[(rows,)](logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK=block)
    return losses, gradient
