"""What a plan is asked for, and what things cost: read from TOML, and refused with the key that is wrong."""

from threeloops.capstone.scenario.sections import Budget, Cluster, Model, Owning, Scenario, Serving, Training

__all__ = ["Budget", "Cluster", "Model", "Owning", "Scenario", "Serving", "Training"]
