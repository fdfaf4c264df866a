"""`threeloops class similar`: find answers that are alike, for an instructor to look at."""
