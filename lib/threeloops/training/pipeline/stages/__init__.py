"""The stages of a pipeline: some layers of a GPT each, with a backward pass in two parts."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.pipeline.stages.gpt import GPTStage, gpt_stages
    from threeloops.training.pipeline.stages.split_backward import input_backward
else:
    import_on_demand(__name__)

__all__ = ["GPTStage", "gpt_stages", "input_backward"]
