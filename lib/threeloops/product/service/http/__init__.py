"""HTTP for a service that strangers can reach: OpenAI's errors, bounded requests, and clients that leave."""
