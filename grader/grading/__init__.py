"""From a submission to a record: the engine, the session, what is withheld, what a record says."""
