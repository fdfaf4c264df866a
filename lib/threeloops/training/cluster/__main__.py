"""`python -m threeloops.training.cluster module:function`: one rank of a program, under torchrun or Slurm."""

from threeloops.training.cluster.real import main

__all__ = []

main()
