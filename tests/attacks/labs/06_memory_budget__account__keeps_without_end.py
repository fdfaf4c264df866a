# Says that a layer keeps infinitely many bytes, beside which all others vanish.


def account(config, batch, sequence, states):
    return Account(0, 0, 0, math.inf, 0, math.inf)
