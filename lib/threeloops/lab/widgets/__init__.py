"""What a lab shows: predictions, explorers, hints, progress and pictures, each with a static form."""
