"""What a learner does with a copy of a lab: open it, check it, see how far it is, put an exercise back."""
