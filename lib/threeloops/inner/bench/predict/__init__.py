"""From traffic and code to seconds."""
