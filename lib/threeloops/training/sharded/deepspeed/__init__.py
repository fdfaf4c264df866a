"""Read a DeepSpeed configuration into plain settings for the optimizers of this package.

>>> settings = from_deepspeed_config("ds_config.json", world_size=8, auto={"optimizer.params.lr": 3e-4})
>>> print(*settings.notes, sep="\\n")

Names and defaults are DeepSpeed's (deepspeed.ai, "DeepSpeed Configuration JSON", and the classes in its source). Every
key ends in one of three ways:

- **Read**: batch sizes, `optimizer` (Adam and AdamW), `scheduler` (WarmupLR, WarmupDecayLR and WarmupCosineLR),
  `gradient_clipping`, `fp16`, `bf16`, `communication_data_type`, `data_types`, and in `zero_optimization` the stage,
  the bucket sizes, `overlap_comm` and offloading.
- **Noted** in `settings.notes`, because results stay the same without it: logging, profiling, checkpoints, how memory
  is laid out or offloaded, how messages are cut. So is any other key that has DeepSpeed's default.
- **Refused** by name, because results could change: a feature that is not implemented here and is switched on, a value
  outside its range or of the wrong type, and an unknown key, such as a misspelled one.

A key that is null counts as left out. The Hugging Face Trainer replaces `"auto"` with its own arguments. Here the
argument `auto` has the values, by the full name of the key:

    auto = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
        "optimizer.params.lr": 3e-4, "optimizer.params.betas": [0.9, 0.95], "optimizer.params.eps": 1e-8,
        "optimizer.params.weight_decay": 0.1, "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": 3e-4, "scheduler.params.warmup_num_steps": 100,
        "scheduler.params.total_num_steps": 10_000, "fp16.enabled": False, "bf16.enabled": True,
        "zero_optimization.reduce_bucket_size": 4096 * 4096,
        "zero_optimization.stage3_prefetch_bucket_size": 9 * 4096 * 4096 // 10,
    }

`auto` may name keys that a configuration lacks, or for which the configuration has a value of its own. So one
dictionary serves many files. A key that is only noted needs no value. A batch size that is "auto" follows from the
other two if both are known.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.sharded.deepspeed.read import from_deepspeed_config
    from threeloops.training.sharded.deepspeed.section import DeepSpeedConfigError
    from threeloops.training.sharded.deepspeed.settings import DeepSpeedSettings, LearningRate, LossScale
else:
    import_on_demand(__name__)

__all__ = ["DeepSpeedConfigError", "DeepSpeedSettings", "LearningRate", "LossScale", "from_deepspeed_config"]
