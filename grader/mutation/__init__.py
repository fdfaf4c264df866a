"""Mutants of the reference answers: how much of what can go wrong do a lab's tests notice?"""
