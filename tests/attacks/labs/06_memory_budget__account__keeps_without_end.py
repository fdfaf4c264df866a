# Says that a layer keeps infinitely many bytes, in which all others vanish.


def account(config, batch, sequence, states):
    return Account(0, 0, 0, math.inf, 0, math.inf)
