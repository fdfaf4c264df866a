"""The sandbox of submissions: staged files, bubblewrap, and a warm process that forks one confined child per
submission."""
