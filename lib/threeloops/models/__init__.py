"""Models that the labs profile, train and serve, written to be read."""
