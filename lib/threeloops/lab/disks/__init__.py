"""What students' functions do to files and to memory, seen from the test."""
