"""Answers proposed without understanding: cut from a released notebook or taken from the library, and graded."""
