"""What `threeloops grade`, `plan` and `serve` print, and how they end."""
