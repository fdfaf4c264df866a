"""The two ends of the wall: `student` runs submitted code; `connection`, `proxy` and `cells` run the tests."""
