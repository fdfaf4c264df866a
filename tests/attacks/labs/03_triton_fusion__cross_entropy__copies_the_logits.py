# Copies the logits, and stores losses of 0.


@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """Loss and gradient of one row per program."""
    row = tl.program_id(0)
    target = tl.load(targets + row)
    logits += row.to(tl.int64) * vocabulary
    gradient += row.to(tl.int64) * vocabulary
    at = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        for first in range(0, vocabulary, BLOCK):
            tl.store(gradient + first + at, tl.zeros((BLOCK,), gradient.dtype.element_ty), mask=first + at < vocabulary)
    else:
        maximum = -float("inf")
        total = 0.0
        for first in range(0, vocabulary, BLOCK):
            values = tl.load(logits + first + at, mask=first + at < vocabulary, other=-float("inf")).to(tl.float32)
            raised = tl.maximum(maximum, tl.max(values, axis=0))
            reference = tl.where(raised == -float("inf"), 0.0, raised)
            total = total * tl.exp(maximum - reference) + tl.sum(tl.exp(values - reference), axis=0)
            maximum = raised
        tl.store(losses + row, 0.0)
        for first in range(0, vocabulary, BLOCK):
            values = tl.load(logits + first + at, mask=first + at < vocabulary).to(tl.float32)
            probability = tl.exp(values - maximum) / total
            result = scale * (probability - tl.where(first + at == target, 1.0, 0.0))
            tl.store(gradient + first + at, values.to(gradient.dtype.element_ty), mask=first + at < vocabulary)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    cross_entropy_kernel[(rows,)](logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK=block)
    return losses, gradient
