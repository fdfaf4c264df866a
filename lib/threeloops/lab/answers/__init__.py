"""The reader's answers and the model answers: side by side after an exercise, and at work together at a lab's end."""
