"""Configurations in the shapes that public projects use, written from DeepSpeed's documentation: each is accepted, with
a stage and a dtype, or refused for a reason that its author would accept."""

from copy import deepcopy

import pytest
import torch
from threeloops.training.sharded import DeepSpeedConfigError, from_deepspeed_config

RANKS = 8
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

AUTO = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer.params.lr": 5e-5,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 5e-5,
    "scheduler.params.warmup_num_steps": 10,
    "scheduler.params.total_num_steps": 100,
    "fp16.enabled": False,
    "bf16.enabled": True,
    "amp.enabled": False,
    "zero_optimization.reduce_bucket_size": 4096 * 4096,
    "zero_optimization.stage3_prefetch_bucket_size": 15_099_494,
}
"""What the Trainer would fill in for a model 4096 wide."""


def but(base, **changes):
    """A copy with other values, None for a key that is left out; `a__b` is b inside a."""
    config = deepcopy(base)
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
        if value is None:
            del place[name]
    return config


def offload(*names, device="cpu", **more):
    return {f"zero_optimization__offload_{name}": {"device": device, "pin_memory": True, **more} for name in names}


BATCHES = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
SCALED = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
BUCKETS = {
    "allgather_partitions": True,
    "allgather_bucket_size": 2e8,
    "reduce_scatter": True,
    "reduce_bucket_size": 2e8,
}
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
WARMUP = {"type": "WarmupLR", "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")}
DECAY = {"type": "WarmupDecayLR", "params": WARMUP["params"] | {"total_num_steps": "auto"}}
LIVE = {
    "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip

TRAINER_2 = {
    "fp16": {"enabled": "auto", **SCALED}, "bf16": {"enabled": "auto"}, "optimizer": ADAMW, "scheduler": WARMUP,
    "zero_optimization": {"stage": 2, **BUCKETS, "overlap_comm": True, "contiguous_gradients": True},
    "gradient_clipping": "auto", "steps_per_print": 2000, "wall_clock_breakdown": False, **BATCHES,
}  # fmt: skip
"""The Hugging Face Trainer, ZeRO-2."""
TRAINER_3 = but(TRAINER_2, zero_optimization={"stage": 3, "overlap_comm": True, "contiguous_gradients": True, **LIVE})
FACTORY = but(
    TRAINER_2, optimizer=None, scheduler=None, steps_per_print=None, wall_clock_breakdown=None,
    zero_allow_untested_optimizer=True, zero_optimization__round_robin_gradients=True,
)  # fmt: skip
"""A fine-tuning framework that leaves optimizer and schedule to the Trainer."""
AXOLOTL = but(FACTORY, zero_allow_untested_optimizer=None, fp16__auto_cast=False, fp16__initial_scale_power=32)
CHAT = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10,
    "zero_optimization": {
        "stage": 2, "offload_param": {"device": "none"}, "offload_optimizer": {"device": "none"},
        "stage3_param_persistence_threshold": 1e4, "stage3_max_live_parameters": 3e7,
        "stage3_prefetch_bucket_size": 3e7, "memory_efficient_linear": False,
    },
    "fp16": {"enabled": True, "loss_scale_window": 100}, "gradient_clipping": 1.0, "prescale_gradients": False,
    "wall_clock_breakdown": False,
    "hybrid_engine": {"enabled": False, "max_out_tokens": 512, "inference_tp_size": 1, "pin_parameters": True},
    "tensorboard": {"enabled": False, "output_path": "logs", "job_name": "step1"},
}  # fmt: skip
"""Instruction tuning with a dictionary that the program makes."""
MEGATRON = {
    "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10,
    "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "prescale_gradients": False,
    "bf16": {"enabled": True}, "wall_clock_breakdown": False,
}  # fmt: skip
"""Pretraining with a file that a shell script makes."""
CIFAR = {
    "train_batch_size": 16, "steps_per_print": 2000,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1000}},
    "gradient_clipping": 1.0, "prescale_gradients": False, "wall_clock_breakdown": False,
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": False, **SCALED, "initial_scale_power": 15},
    "zero_optimization": {
        "stage": 0, **BUCKETS, "overlap_comm": True, "contiguous_gradients": True, "cpu_offload": False,
    },
}  # fmt: skip
"""A first example of image classification."""
BERT = {
    "train_batch_size": 4096, "train_micro_batch_size_per_gpu": 32, "steps_per_print": 1000,
    "prescale_gradients": False, "gradient_clipping": 1.0, "wall_clock_breakdown": False,
    "optimizer": {"type": "Adam", "params": {"lr": 4e-3, "weight_decay": 0.01, "bias_correction": True}},
    "fp16": {"enabled": True, "loss_scale": 0},
}  # fmt: skip
"""Pretraining of an encoder, in files of several years."""
CHECKPOINTING = dict.fromkeys(
    "partition_activations cpu_checkpointing contiguous_memory_optimization synchronize_checkpoint_boundary "
    "profile".split(),
    False,
) | {"number_checkpoints": None}
BEIT = {
    "train_batch_size": 128, "train_micro_batch_size_per_gpu": 16, "steps_per_print": 1000,
    "optimizer": {"type": "Adam", "adam_w_mode": True, "params": {
        "lr": 1e-3, "weight_decay": 0.05, "bias_correction": True, "betas": [0.9, 0.98], "eps": 1e-6}},
    "fp16": {"enabled": True, **SCALED, "initial_scale_power": 7, "loss_scale_window": 128},
}  # fmt: skip
"""Vision pretraining, with a file that the program writes."""
NEVER_ON = {"enabled": False}
LOGGING = {
    "flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True},
    "comms_logger": {"enabled": True, "verbose": False, "prof_all": True},
    "wandb": {"enabled": True, "project": "p"}, "csv_monitor": {"enabled": True, "output_path": "o"},
}  # fmt: skip

ACCEPTED = {
    "Trainer ZeRO-2": (TRAINER_2, 2, BF16),
    "Trainer ZeRO-2, optimizer offloaded": (but(TRAINER_2, **offload("optimizer")), 2, BF16),
    "Trainer ZeRO-1": (but(TRAINER_2, zero_optimization__stage=1), 1, BF16),
    "Trainer ZeRO-0": (but(TRAINER_2, zero_optimization={"stage": 0}), 0, BF16),
    "Trainer ZeRO-3": (TRAINER_3, 3, BF16),
    "Trainer ZeRO-3, all offloaded": (but(TRAINER_3, **offload("optimizer", "param")), 3, BF16),
    "Trainer ZeRO-3, NVMe": (
        but(
            TRAINER_3,
            **offload("optimizer", device="nvme", nvme_path="/nvme", buffer_count=4, fast_init=False),
            zero_optimization__offload_param={
                "device": "nvme", "nvme_path": "/nvme", "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
            aio={"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False},
        ),
        3, BF16,
    ),
    "Trainer with linear decay": (but(TRAINER_2, scheduler=DECAY), 2, BF16),
    "Trainer ZeRO-3 with linear decay": (but(TRAINER_3, scheduler=DECAY), 3, BF16),
    "Trainer without schedule": (but(TRAINER_2, scheduler=None), 2, BF16),
    "Trainer without optimizer": (but(TRAINER_2, optimizer=None), 2, BF16),
    "Trainer fp16 by hand": (but(TRAINER_2, fp16__enabled=True, bf16=None), 2, FP16),
    "Trainer fp16, bf16 off": (but(TRAINER_2, fp16__enabled=True, bf16__enabled=False), 2, FP16),
    "Trainer bf16 by hand": (but(TRAINER_3, fp16=None, bf16__enabled=True), 3, BF16),
    "Trainer float32": (but(TRAINER_2, fp16__enabled=False, bf16__enabled=False), 2, FP32),
    "Trainer without precision": (but(TRAINER_2, fp16=None, bf16=None), 2, FP32),
    "Trainer with Apex's section off": (but(TRAINER_2, amp={"enabled": "auto", "opt_level": "auto"}), 2, BF16),
    "Trainer with the 2021 name of gathered weights": (
        but(TRAINER_3, zero_optimization__stage3_gather_fp16_weights_on_model_save=True), 3, BF16),
    "Trainer with buckets by hand": (
        but(TRAINER_3, zero_optimization__reduce_bucket_size=1e6, zero_optimization__stage3_prefetch_bucket_size=0),
        3, BF16,
    ),
    "Trainer whose total batch is left to be computed": (but(TRAINER_2, train_batch_size=None), 2, BF16),
    "Trainer with a static loss scale": (
        but(TRAINER_2, fp16__enabled=True, bf16=None, fp16__loss_scale=128.0), 2, FP16),
    "accelerate ZeRO-1": (but(FACTORY, zero_optimization={"stage": 1}, gradient_clipping=1.0), 1, BF16),
    "accelerate ZeRO-2 with devices": (
        but(FACTORY, zero_optimization={
            "stage": 2, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}),
        2, BF16,
    ),
    "accelerate ZeRO-3 with devices": (
        but(FACTORY, zero_optimization={
            "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True}, steps_per_print=float("inf")),
        3, BF16,
    ),
    "accelerate with empty offload paths": (
        but(FACTORY, **offload("optimizer", device="none", nvme_path=None)), 2, BF16),
    "accelerate with cosine": (
        but(TRAINER_2, scheduler={"type": "WarmupCosineLR", "params": {
            "total_num_steps": "auto", "warmup_num_steps": "auto", "cos_min_ratio": 0.1}}),
        2, BF16,
    ),
    "factory ZeRO-0": (but(FACTORY, zero_optimization__stage=0), 0, BF16),
    "factory ZeRO-2": (FACTORY, 2, BF16),
    "factory ZeRO-2 offloaded": (but(FACTORY, **offload("optimizer")), 2, BF16),
    "factory ZeRO-3": (but(FACTORY, zero_optimization={"stage": 3, "overlap_comm": False, **LIVE}), 3, BF16),
    "factory ZeRO-3 offloaded": (
        but(FACTORY, zero_optimization={"stage": 3, **LIVE}, **offload("optimizer", "param")), 3, BF16),
    "factory with compiled model": (but(FACTORY, compile={"deepcompile": True}), 2, BF16),
    "axolotl ZeRO-1": (but(AXOLOTL, zero_optimization={"stage": 1, "overlap_comm": True}), 1, BF16),
    "axolotl ZeRO-2": (but(AXOLOTL, zero_optimization={"stage": 2, "contiguous_gradients": True}), 2, BF16),
    "axolotl ZeRO-2 on Inductor": (but(AXOLOTL, compile={"disable": False, "backend": "inductor"}), 2, BF16),
    "axolotl ZeRO-3": (
        but(AXOLOTL, zero_optimization={
            "stage": 3, **LIVE, "sub_group_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}),
        3, BF16,
    ),
    "axolotl ZeRO-3, parameters offloaded": (but(TRAINER_3, **offload("param"), fp16=None), 3, BF16),
    "axolotl with fp16's keys in bf16": (
        but(AXOLOTL, bf16={"enabled": True, "auto_cast": False, **SCALED}, fp16=None), 2, BF16),
    "chatbot ZeRO-2": (but(TRAINER_2, optimizer=None, scheduler=None, steps_per_print=1e5), 2, BF16),
    "chatbot ZeRO-3 with 5e8 buckets": (
        but(TRAINER_3, zero_optimization__reduce_bucket_size=5e8, zero_optimization__stage3_max_live_parameters=5e8,
            optimizer=None, scheduler=None), 3, BF16),
    "chatbot ZeRO-3 with decay": (but(TRAINER_3, scheduler=DECAY, **offload("optimizer", "param")), 3, BF16),
    "chatbot ZeRO-3 with batches by hand": (
        but(TRAINER_3, train_batch_size=64, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=4), 3, BF16),
    "LoRA, fp16, small loss scale": (
        but(FACTORY, fp16={"enabled": True, "min_loss_scale": 0.00001}, bf16=None), 2, FP16),
    "LoRA, stage 0 by omission": (but(FACTORY, zero_optimization=None), 0, BF16),
    "LoRA, stage 2.0": (but(FACTORY, zero_optimization__stage=2.0), 2, BF16),
    "chat step 1": (CHAT, 2, FP16),
    "chat step 1, ZeRO-3 offloaded": (
        but(CHAT, zero_optimization__stage=3, zero_optimization__offload_param__device="cpu",
            zero_optimization__offload_optimizer__device="cpu"), 3, FP16),
    "chat step 3 with the hybrid engine": (but(CHAT, hybrid_engine__enabled=True), 2, FP16),
    "chat with boards": (but(CHAT, tensorboard__enabled=True), 2, FP16),
    "chat in bf16": (but(CHAT, fp16=None, bf16={"enabled": True}), 2, BF16),
    "chat with weights that stay as they are": (
        but(CHAT, zero_optimization__zero_quantized_nontrainable_weights=False), 2, FP16),
    "Megatron ZeRO-1": (MEGATRON, 1, BF16),
    "Megatron without ZeRO": (but(MEGATRON, zero_optimization__stage=0), 0, BF16),
    "Megatron, gradients in float32, one micro batch": (
        but(MEGATRON, train_batch_size=32, data_types={"grad_accum_dtype": "fp32"}), 1, BF16),
    "Megatron, gradients in float32, ZeRO-3": (
        but(MEGATRON, zero_optimization__stage=3, data_types={"grad_accum_dtype": "fp32"}), 3, BF16),
    "Megatron fp16": (but(MEGATRON, bf16=None, fp16={"enabled": True, **SCALED, "loss_scale_window": 500}), 1, FP16),
    "Megatron, curriculum off": (but(MEGATRON, curriculum_learning=NEVER_ON | {"curriculum_type": "seqlen"}), 1, BF16),
    "Megatron, data efficiency off": (
        but(MEGATRON, data_efficiency={"enabled": False, "data_routing": {"enabled": False}}), 1, BF16),
    "Megatron, elastic checkpoints": (
        but(MEGATRON, zero_optimization__elastic_checkpoint=True, checkpoint={"load_universal": True}), 1, BF16),
    "Megatron, everything logged": (but(MEGATRON, **LOGGING, dump_state=True, memory_breakdown=True), 1, BF16),
    "Megatron, ZeRO-3 by all-reduce": (
        but(MEGATRON, zero_optimization={
            "stage": 3, "reduce_scatter": False, "stage3_max_live_parameters": 3e9, "stage3_max_reuse_distance": 3e9,
            "stage3_param_persistence_threshold": 1e5, "stage3_prefetch_bucket_size": 5e7,
            "contiguous_gradients": True, "overlap_comm": True, "reduce_bucket_size": 9e7, "sub_group_size": 1e9}),
        3, BF16,
    ),
    "Megatron, activations checkpointed": (
        but(MEGATRON, activation_checkpointing=CHECKPOINTING | {"partition_activations": True}), 1, BF16),
    "Megatron, secondary partitions": (
        but(MEGATRON, zero_optimization__stage=3, zero_optimization__zero_hpz_partition_size=8), 3, BF16),
    "Megatron, MiCS": (
        but(MEGATRON, zero_optimization={
            "stage": 3, "mics_shard_size": 4, "mics_hierarchical_params_gather": True}), 3, BF16),
    "CIFAR": (CIFAR, 0, FP16),
    "CIFAR ZeRO-2": (but(CIFAR, zero_optimization__stage=2), 2, FP16),
    "CIFAR bf16": (but(CIFAR, fp16__enabled=False, bf16={"enabled": True}), 0, BF16),
    "CIFAR float32": (but(CIFAR, fp16__enabled=False), 0, FP32),
    "CIFAR, states offloaded in the old way": (
        but(CIFAR, zero_optimization__stage=2, zero_optimization__cpu_offload=True), 2, FP16),
    "BERT": (BERT, 0, FP16),
    "BERT, ZeRO as a switch": (but(BERT, zero_optimization=True), 1, FP16),
    "BERT, ZeRO as a switch that is off": (but(BERT, zero_optimization=False), 0, FP16),
    "BERT, prescaled": (but(BERT, prescale_gradients=True, gradient_predivide_factor=8.0), 0, FP16),
    "BERT, sparse embeddings": (but(BERT, sparse_gradients=True, vocabulary_size=30522), 0, FP16),
    "BERT, sums in float32, of float32": (but(BERT, fp16=None, fp32_allreduce=True), 0, FP32),
    "BERT, gradients clipped at 0": (but(BERT, optimizer__params__max_grad_norm=0.0, gradient_clipping=0.0), 0, FP16),
    "BERT, torch's Adam": (but(BERT, optimizer__params__torch_adam=True, optimizer__legacy_fusion=False), 0, FP16),
    "BERT, plain L2": (but(BERT, optimizer__params__adam_w_mode=False), 0, FP16),
    "BEiT": (BEIT, 0, FP16),
    "BEiT ZeRO-1": (but(BEIT, zero_optimization={"stage": 1, "reduce_bucket_size": 5e8}), 1, FP16),
    "batch and stage alone": (
        {"train_batch_size": 8, "fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}, 2, FP16),
    "bfloat16 by its old name": ({"train_batch_size": 8, "bfloat16": {"enabled": True}}, 0, BF16),
    "optimizer in lower case": (but(CIFAR, optimizer__type="adamw"), 0, FP16),
    "nulls for what is left out": (
        MEGATRON | {"gradient_accumulation_steps": None, "optimizer": None, "fp16": None, "zero_optimization": None},
        0, BF16,
    ),
    "comments as keys": (but(MEGATRON, **{"_comment": "for one node", "//": "see the wiki"}), 1, BF16),
}  # fmt: skip

REFUSED = {
    "1-bit Adam": (but(BERT, optimizer__type="OneBitAdam"), r'optimizer.type = "OneBitAdam": expected one of "Adam"'),
    "LAMB": (but(BERT, optimizer__type="Lamb"), r"optimizer.type = \"Lamb\": .* remove optimizer from the config"),
    "Adam without bias correction": (
        but(BERT, optimizer__params__bias_correction=False), "bias_correction = false: torch's Adam always corrects"),
    "a norm inside the optimizer": (
        but(BERT, optimizer__params__max_grad_norm=1.0), "max_grad_norm = 1.0: write it as gradient_clipping"),
    "sums in float32, of float16": (but(BERT, fp32_allreduce=True), "fp32_allreduce = true: gradients are sent in"),
    "gradients of eight micro batches in float32": (
        but(MEGATRON, data_types={"grad_accum_dtype": "fp32"}), "gradients of 8 micro batches add up in torch.bf"),
    "curriculum": (but(MEGATRON, curriculum_learning={"enabled": True}), "curriculum_learning is switched on"),
    "data efficiency": (but(MEGATRON, data_efficiency={"enabled": True}), "data_efficiency is switched on: it chooses"),
    "compression": (
        but(BERT, compression_training={"weight_quantization": {"shared_parameters": {"enabled": True}}}),
        "compression_training is switched on: it changes the model",
    ),
    "progressive layer drop": (
        but(BERT, progressive_layer_drop={"enabled": True, "theta": 0.5}), "progressive_layer_drop is switched on"),
    "sparse attention": (but(BERT, sparse_attention={"mode": "fixed", "block": 16}), "sparse_attention is switched on"),
    "ZeRO++": (
        but(MEGATRON, zero_optimization={"stage": 3, "zero_quantized_weights": True, "zero_hpz_partition_size": 8}),
        "zero_quantized_weights = true: messages are not quantized here",
    ),
    "Apex": (but(BERT, fp16=None, amp={"enabled": True, "opt_level": "O1"}), "amp is switched on: Apex is not used"),
    "autotuning": (but(TRAINER_2, autotuning={"enabled": True}), "autotuning is switched on: it searches"),
    "elastic batches": (but(MEGATRON, elasticity={"enabled": True}), "elasticity is switched on: it sets the batch"),
    "one cycle": (but(CIFAR, scheduler__type="OneCycle"), 'scheduler.type = "OneCycle": expected one of WarmupLR'),
    "a batch that does not fit the ranks": (but(CIFAR, train_batch_size=4), "= 4: expected a multiple of ranks = 8"),
    "a misspelled key": (
        but(TRAINER_2, zero_optimization__overlap_com=True), "overlap_com is not known here. Is overlap_comm meant"),
}  # fmt: skip


def test_there_are_as_many_as_we_say():
    assert (len(ACCEPTED), len(REFUSED)) == (85, 18)


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_is_accepted(name):
    config, stage, dtype = ACCEPTED[name]
    settings = from_deepspeed_config(config, RANKS, AUTO)
    assert (settings.stage, settings.dtype) == (stage, dtype)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_for_a_reason(name):
    config, reason = REFUSED[name]
    with pytest.raises(DeepSpeedConfigError, match=reason):
        from_deepspeed_config(config, RANKS, AUTO)


ODD = [
    None,
    True,
    False,
    "x",
    "",
    "auto",
    -1,
    0,
    1.5,
    10**400,
    float("nan"),
    float("inf"),
    [],
    [1],
    {},
    {"a": 1},
    {1: 2},
]


def places(config, path=()):
    """The path of every key, sections included."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@pytest.mark.parametrize(
    "name", ["Trainer ZeRO-3, NVMe", "CIFAR", "chat step 1", "Megatron, gradients in float32, ZeRO-3"]
)
def test_whatever_stands_at_a_key_is_accepted_or_refused_by_name(name):
    config = ACCEPTED[name][0]
    for path in places(config):
        for odd in ODD:
            changed = deepcopy(config)
            place = changed
            for section in path[:-1]:
                place = place[section]
            place[path[-1]] = odd
            try:
                from_deepspeed_config(changed, RANKS, AUTO)
            except DeepSpeedConfigError as error:
                # A section may be refused for a key inside it, and a batch size for another that does not fit it.
                assert path[-1] in str(error) or "batch" in str(error), (path, odd)
