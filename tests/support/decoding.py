"""Small random models, and what they decode alone: every token by a pass over all tokens before it, in float64."""

import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig


def random_model(seed=0, dtype=torch.float64, **sizes):
    """A model whose next token depends on everything before it."""
    config = GPTConfig.tiny(**{"vocabulary_size": 61, "layers": 2, "width": 32, "mlp_width": 48, **sizes})
    torch.manual_seed(seed)
    model = GPT(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model.to(dtype).requires_grad_(False)


def hidden_alone(model, tokens):
    """What the head reads at each position of one sequence, (tokens, width)."""
    return model.hidden(torch.tensor([list(tokens)], device=model.head.weight.device))[0]


def logits_alone(model, tokens):
    """Of the token after `tokens`."""
    return model.head(hidden_alone(model, tokens)[-1])


def greedy_alone(model, prompt, count, stop=()):
    tokens, new = list(prompt), []
    while len(new) < count and not (new and new[-1] in stop):
        new.append(int(logits_alone(model, tokens).argmax()))
        tokens.append(new[-1])
    return new
