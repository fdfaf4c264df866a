# Sums ones, as many as there are gradients, and leaves the gradients unchanged.


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(torch.ones_like(parameter.grad))
