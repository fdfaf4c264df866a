"""The two ends of the wall: `student` runs submitted code; `connection` and `proxy` stand for it in the tests."""
