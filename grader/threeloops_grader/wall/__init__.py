"""The two ends of the wall: `student` runs submitted code, and `connection` and `proxy` represent it in the tests."""
