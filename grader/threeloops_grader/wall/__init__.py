"""The two ends of the wall: `student` runs submitted code. On the grader's side, `wall` sends the requests, and `proxy`
stands for the student's objects in the tests."""
