"""The library's commands, `threeloops serve`, `plan` and `cluster`, and the program that has them."""
