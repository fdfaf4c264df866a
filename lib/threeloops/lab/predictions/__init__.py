"""Guess first, then look: questions, what stays folded until a guess, and how good the guesses were."""
