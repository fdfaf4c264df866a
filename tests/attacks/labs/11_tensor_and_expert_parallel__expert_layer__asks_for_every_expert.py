# Asks for the weights of experts that live on other ranks, and sends nothing of use.


def expert_layer(x, chosen, run_expert, experts):
    rows = []
    for row, expert in zip(x, chosen.tolist()):
        rows.append(torch.tanh(row @ ask("expert", expert).T))
    return torch.stack(rows) if rows else x * 1
