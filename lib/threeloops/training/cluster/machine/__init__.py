"""The cluster as a discrete-event machine: topologies, faults, and the router, which knows no processes."""
