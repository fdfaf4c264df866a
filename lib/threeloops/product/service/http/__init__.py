"""HTTP as a service that strangers reach needs it: OpenAI's errors, bounded requests, and clients that go away."""
