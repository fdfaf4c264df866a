"""How the grader's side sees what a student's threads do to files, and when they call: functions and folders."""
