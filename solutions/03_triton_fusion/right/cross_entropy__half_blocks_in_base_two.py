LOG2E = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = 0.6931471805599453


@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """Tiles of half a block, as a matrix with 8 rows; exponentials of base two."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    start = row * vocabulary
    at = tl.arange(0, 8)[:, None] * (BLOCK // 16) + tl.arange(0, BLOCK // 16)[None, :]
    if target != ignore_index:
        m, s = -float("inf"), 0.0
        for first in range(0, vocabulary, BLOCK // 2):
            column = first + at
            z = tl.load(logits + start + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32) * LOG2E
            larger = tl.maximum(m, tl.max(z))
            if larger != -float("inf"):
                s = s * tl.exp2(m - larger) + tl.sum(tl.exp2(z - larger))
                m = larger
        tl.store(losses + row, (m + tl.log2(s)) * LN2 - tl.load(logits + start + target).to(tl.float32))
        for first in range(0, vocabulary, BLOCK // 2):
            column = first + at
            z = tl.load(logits + start + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32) * LOG2E
            d = (tl.exp2(z - m) / s - (column == target).to(tl.float32)) * scale
            tl.store(gradient + start + column, d.to(gradient.dtype.element_ty), mask=column < vocabulary)
    else:
        tl.store(losses + row, 0.0)
        for first in range(0, vocabulary, BLOCK // 2):
            none = tl.zeros((8, BLOCK // 16), gradient.dtype.element_ty)
            tl.store(gradient + start + first + at, none, mask=first + at < vocabulary)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    if rows:
        cross_entropy_kernel[(rows,)](logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK=block)
    return losses, gradient
