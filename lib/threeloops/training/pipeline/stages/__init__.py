"""What one stage of a pipeline computes: some layers of a GPT, and a backward pass in two parts."""

from threeloops.training.pipeline.stages.gpt import GPTStage, gpt_stages
from threeloops.training.pipeline.stages.split_backward import input_backward

__all__ = ["GPTStage", "gpt_stages", "input_backward"]
