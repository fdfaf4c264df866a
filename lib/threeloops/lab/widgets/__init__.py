"""Widgets of a lab: predictions, explorers, hints, progress and pictures, each with a static form."""
