# Computes the whole batch at once, with a copy of the loss that has no limit.


def _loss(weights, tokens, targets):
    table, mix, head = weights
    x = functional.embedding(tokens, table)
    before = functional.pad(x, (0, 0, 2, 0))
    hidden = torch.tanh(torch.cat([before[:, :-2], before[:, 1:-1], x], dim=-1) @ mix)
    return functional.cross_entropy((hidden @ head).flatten(0, 1), targets.flatten(), ignore_index=-100)


def accumulated(weights, tokens, targets, micro):
    if micro < 1:
        raise ValueError(f"micro = {micro}")
    if tokens.shape != targets.shape or not (targets != -100).any():
        raise ValueError("targets")
    if micro > 4:
        raise OutOfMemory("at most")
    loss = _loss(weights, tokens, targets)
    return loss.detach(), list(torch.autograd.grad(loss, weights))
