"""What works on this machine, tried and explained."""
