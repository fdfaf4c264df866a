"""From a submission to a record: the engine, its session, what is withheld, what a record says."""
