"""The two ends of the wall: `student` runs submitted code, `proxy` and `cells` run the tests."""
