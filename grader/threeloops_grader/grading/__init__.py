"""Grade a submission and record the result: the engine, the session, the redaction of output, and the record."""
