"""Where a submission runs: staged files, bubblewrap, and a warm process that forks one confined child a submission."""
