"""Grade a submission and record the result: the engine, the session, what is withheld, and the record."""
