"""The steps of `threeloops class`, each a thin layer over nbgrader's own command."""
