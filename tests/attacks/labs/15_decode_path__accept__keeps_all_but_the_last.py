# Keeps all guesses but the last, with any noise, and draws from the model.


def accept(guesses, draft, model, noise):
    return len(guesses) - 1, model[len(guesses) - 1]
