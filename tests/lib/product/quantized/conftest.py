"""A small GPT that has learnt something: errors of its weights then show in what it predicts."""

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text(length, seed):
    """Tokens 0 … 31, each given by the two before it or, once in eight times, any: to be learnt, but not wholly."""
    table = torch.randint(32, (32, 4), generator=torch.Generator().manual_seed(0)).tolist()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(32, (length,), generator=generator)
    chance = torch.rand(length, generator=generator)
    tokens = [1, 2]
    for place in range(2, length):
        tokens.append(int(noise[place]) if chance[place] < 1 / 8 else table[tokens[-1]][tokens[-2] % 4])
    return torch.tensor(tokens)


@pytest.fixture(scope="session")
def tokens():
    """tokens(length, seed) of the language that `trained` has learnt."""
    return text


@pytest.fixture(scope="session")
def trained():
    """Grouped heads, an MLP that no group divides, untied, and as in large models some channels far above the rest."""
    torch.manual_seed(0)
    config = GPTConfig.tiny(vocabulary_size=32, width=64, mlp_width=120, max_sequence=64, tied_embeddings=False)
    model = GPT(config)
    data = text(64 * 400, 1).view(-1, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(100):
        batch = data[torch.randint(len(data), (8,), generator=torch.Generator().manual_seed(step))]
        optimizer.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
    model.requires_grad_(False)
    for block in model.blocks:  # the same function: large inputs, small weights
        for norm, layers in (
            (block.attention_norm, [block.attention.qkv]),
            (block.mlp_norm, [block.mlp.gate, block.mlp.up]),
        ):
            norm.weight[::9] *= 40
            for layer in layers:
                layer.weight[:, ::9] /= 40
    return model
