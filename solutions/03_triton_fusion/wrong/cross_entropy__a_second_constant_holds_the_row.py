# expect: the largest tile has
# fails: blocks
@triton.jit
def cross_entropy_kernel(
    logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr, ROW: tl.constexpr
):
    row = tl.program_id(0)
    target = tl.load(targets + row)
    logits += row.to(tl.int64) * vocabulary
    gradient += row.to(tl.int64) * vocabulary
    at = tl.arange(0, ROW)
    inside = at < vocabulary
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        tl.store(gradient + at, tl.zeros((ROW,), gradient.dtype.element_ty), mask=inside)
    else:
        values = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32)
        maximum = tl.max(values, axis=0)
        exponentials = tl.exp(values - maximum)
        total = tl.sum(exponentials, axis=0)
        tl.store(losses + row, maximum + tl.log(total) - tl.sum(tl.where(at == target, values, 0.0), axis=0))
        result = scale * (exponentials / total - tl.where(at == target, 1.0, 0.0))
        tl.store(gradient + at, result.to(gradient.dtype.element_ty), mask=inside)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    if rows:
        cross_entropy_kernel[(rows,)](
            logits, targets, losses, gradient, vocabulary, ignore_index, scale,
            BLOCK=block, ROW=triton.next_power_of_2(vocabulary),
        )  # fmt: skip
    return losses, gradient
