"""What a launcher did, as data: recorded on one side, checked and executed on the other."""
