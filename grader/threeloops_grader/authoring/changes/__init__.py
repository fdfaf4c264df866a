"""Answers that are small changes to the reference: their hunks, and the file of a lab that holds them."""
