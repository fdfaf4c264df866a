"""What a recording holds, how it is framed between processes, and the reader that refuses malformed ones."""
