"""One module per format: `render(document) -> bytes`."""
