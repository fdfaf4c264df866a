"""Commands on a learner's copy of a lab: open it, check it, show progress, and put an exercise back."""
