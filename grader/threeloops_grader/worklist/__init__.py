"""The grading of a whole class: the records that are its only state, its shares, and the engines that run them."""
