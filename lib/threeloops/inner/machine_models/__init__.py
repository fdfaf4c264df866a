"""Small models of hardware: a systolic array, the banks of shared memory, a pointer chase."""
