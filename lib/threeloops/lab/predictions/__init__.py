"""Guess first, then look: questions, parts that stay folded until a guess, and the quality of the guesses."""
