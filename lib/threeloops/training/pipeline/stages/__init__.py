"""The stages of a pipeline: some layers of a GPT each, with a backward pass in two parts."""

from threeloops.training.pipeline.stages.gpt import GPTStage, gpt_stages
from threeloops.training.pipeline.stages.split_backward import input_backward

__all__ = ["GPTStage", "gpt_stages", "input_backward"]
