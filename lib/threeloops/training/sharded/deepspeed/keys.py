"""List the keys that are not read: those without an effect on results, and those that need DeepSpeed's default."""

from typing import Any

__all__ = ["FEATURES", "ONLY_DEFAULT", "WITHOUT_EFFECT"]

_LOGGED = "it concerns what DeepSpeed prints, logs or measures"
_SAVED = "it concerns DeepSpeed's checkpoints; use threeloops.training.checkpoint"
_OFFLOADED = "it concerns how DeepSpeed offloads"
_GATHERED = "units and units_in_flight limit what is gathered"
_COMPUTED = "it concerns how DeepSpeed computes the same values"
_SENT = "it concerns how DeepSpeed cuts messages, whose sums are the same"
_HOOKED = "it concerns how DeepSpeed changes modules"
_UNSCALED = "bfloat16 has the range of float32 and needs no loss scale"
_MEAN = "gradients are divided by the number of ranks before they are summed here, which gives the same mean"

WITHOUT_EFFECT = {
    **dict.fromkeys(
        "steps_per_print wall_clock_breakdown memory_breakdown dump_state tensorboard wandb csv_monitor comet "
        "monitor_config flops_profiler comms_logger comms_config timers log_level".split(),
        _LOGGED,
    ),
    **dict.fromkeys("checkpoint nebula datastates_ckpt zero_optimization.load_from_fp32_weights".split(), _SAVED),
    **dict.fromkeys("compile graph_harvesting hybrid_engine optimizer.legacy_fusion".split(), _COMPUTED),
    **dict.fromkeys("prescale_gradients gradient_predivide_factor".split(), _MEAN),
    "activation_checkpointing": "it saves memory and keeps the values; use torch.utils.checkpoint in the model",
    "aio": _OFFLOADED,
    "dataloader_drop_last": "the program has its own data loader",
    "seq_parallel_communication_data_type": "sequences are not cut by this configuration",
    "sparse_gradients": "gradients of embeddings are sent as dense tensors here, with the same sums",
    "use_data_before_expert_parallelism": "experts are not cut by this configuration",
    "vocabulary_size": "DeepSpeed only checks whether it suits tensor cores",
    "zero_allow_untested_optimizer": "any optimizer that acts elementwise is right here",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's in any case",
    "fp16.opt_level": "it belongs to Apex",
    "bf16.immediate_grad_update": _COMPUTED,
    **{
        f"bf16.{name}": _UNSCALED
        for name in "loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale "
        "consecutive_hysteresis".split()
    },
    **{f"optimizer.params.{name}": "the optimizer is torch's in any case" for name in ("torch_adam", "set_grad_none")},
    **{f"optimizer.params.{name}": _COMPUTED for name in ("foreach", "fused")},
    "zero_optimization.contiguous_gradients": "gradients of a bucket are always contiguous here",
    "zero_optimization.ignore_unused_parameters": "a parameter without a gradient is an error here",
    "zero_optimization.zero_hpz_partition_size": "parameters are gathered over all ranks of the group; FSDP has `mesh`",
    "zero_optimization.mics_shard_size": "FSDP has `mesh` for sharding inside a node, with the same sums",
    **{
        f"zero_optimization.{prefix}{name}": _GATHERED
        for name in "max_live_parameters max_reuse_distance module_granularity_threshold allgather_sequential "
        "use_all_reduce_for_fetch_params".split()
        for prefix in ("", "stage3_")
    },
    **{
        f"zero_optimization.{prefix}{name}_persistence_threshold": "the root keeps what belongs to no unit"
        for name in ("param", "model")
        for prefix in ("", "stage3_")
    },
    **{
        f"zero_optimization.{name}_on_model_save": "FSDP.full_parameters() gathers them"
        for name in ("stage3_gather_16bit_weights", "stage3_gather_fp16_weights", "gather_16bit_weights")
    },
    **{f"zero_optimization.{name}": _SAVED for name in ("elastic_checkpoint", "pipeline_loading_checkpoint")},
    **{f"zero_optimization.{name}": _LOGGED for name in ("log_trace_cache_warnings", "enable_sanity_checks")},
    **{
        f"zero_optimization.{name}": _SENT
        for name in "use_multi_rank_bucket_allreduce legacy_stage1 mics_hierarchical_params_gather".split()
    },
    **{
        f"zero_optimization.{name}": _HOOKED
        for name in "memory_efficient_linear override_module_apply leaf_module stage3_partition_stream_chunk_size "
        "partition_stream_chunk_size".split()
    },
    **{
        f"zero_optimization.{name}": _OFFLOADED
        for name in "round_robin_gradients sub_group_size cpu_offload_use_pin_memory "
        "save_muon_momentum_buffer_in_memory".split()
    },
    **{
        f"zero_optimization.{section}.{name}": _OFFLOADED
        for section in ("offload_param", "offload_optimizer")
        for name in "pin_memory buffer_count buffer_size max_in_cpu fast_init pipeline pipeline_read pipeline_write "
        "ratio super_offload convert_grad_on_cpu cpuadam_cores_perc".split()
    },
}
"""Keys that have no effect on results here, by their full names, each with the reason."""

_MASTERS = "masters and optimizer states are float32 here; remove it"
_QUANTIZED = "messages are not quantized here; remove it"
_DTYPE = "parameters and buffers have the dtype of the model; convert the model in the program"

ONLY_DEFAULT: dict[str, tuple[Any, str]] = {
    "disable_allgather": (False, "parameters are all-gathered after each step here; remove it"),
    "sequence_parallel_size": (
        1,
        "sequences are not cut here; use threeloops.training.context_parallel",
    ),
    "gradient_allreduce_op": ("mean", "gradients are averaged here; scale the loss in the program"),
    "managed_gradient_accumulation": (True, "accumulation_steps sets when a step is due; remove it"),
    "fp16.auto_cast": (False, "inputs are not cast here; cast them in the program, and remove it"),
    "bf16.auto_cast": (False, "inputs are not cast here; cast them in the program, and remove it"),
    "fp16.consecutive_hysteresis": (False, "good steps in between do not refill the hysteresis here; remove it"),
    "fp16.fp16_master_weights_and_grads": (False, _MASTERS),
    "bf16.bf16_master_weights_and_grads": (False, _MASTERS),
    "bf16.bf16_optimizer_states": (False, _MASTERS),
    "bf16.check_grad_overflow": (False, "steps with infinite gradients are not skipped in bfloat16 here; remove it"),
    "data_types.param_dtype": (None, _DTYPE),
    "data_types.buffer_dtype": (None, _DTYPE),
    "optimizer.adam_w_mode": (True, "DeepSpeed reads it inside optimizer.params; write it there"),
    "optimizer.params.amsgrad": (False, "DeepSpeed's Adam has no AMSGrad either; build the optimizer in the program"),
    "optimizer.params.maximize": (False, "losses are minimized here; negate the loss in the program"),
    "optimizer.params.bias_correction": (
        True,
        "torch's Adam always corrects the bias; remove it",
    ),
    "optimizer.params.max_grad_norm": (0, "write it as gradient_clipping, as DeepSpeed asks for too"),
    "optimizer.params.fp32_optimizer_states": (True, _MASTERS),
    "scheduler.params.last_batch_iteration": (
        -1,
        "to go on with a schedule, call learning_rate with that step",
    ),
    "zero_optimization.zero_quantized_weights": (False, _QUANTIZED),
    "zero_optimization.zero_quantized_nontrainable_weights": (False, _QUANTIZED),
    "zero_optimization.zero_quantized_gradients": (False, _QUANTIZED),
    "zero_optimization.zeropp_loco_param": (None, _QUANTIZED),
}
"""Keys that could change results and are not implemented: DeepSpeed's default, and why another value is refused."""

_DATA = "it chooses the data; do that in the program and remove it"
_MODEL = "it changes the model; change the model in the program and remove it"

FEATURES = {
    "amp": "Apex is not used here; use fp16 or bf16",
    "torch_autocast": "parameters and gradients have one dtype here; use bf16, or torch.autocast in the program",
    "sparse_attention": _MODEL,
    "progressive_layer_drop": _MODEL,
    "compression_training": _MODEL,
    "quantize_training": _MODEL,
    "weight_quantization": _MODEL,
    "eigenvalue": "it serves quantize_training, which is not implemented here; remove it",
    "curriculum_learning": _DATA,
    "data_efficiency": _DATA,
    "elasticity": "it sets the batch sizes; write those for this number of ranks and remove it",
    "autotuning": "it searches for a configuration; run it with DeepSpeed, and read its result here",
    "tensor_parallel": "layers are not cut by this configuration; use threeloops.training.tensor_parallel",
    "expert_parallel": "experts are not cut by this configuration; use threeloops.training.expert_parallel",
    "pipeline": "layers are not cut by this configuration; use threeloops.training.pipeline",
    "zero_optimization.zenflow": "it updates parameters late; remove it",
}
"""Sections that change results when they are switched on, and the alternative for each."""
