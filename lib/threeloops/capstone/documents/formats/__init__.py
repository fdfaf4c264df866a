"""The outline of a document, and one module per format that renders it: `render(document) -> bytes`."""
