"""DeepSpeed configurations: what is read, what is noted, and what is refused by name."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster
from threeloops.training.sharded import DeepSpeedConfigError, LossScale, ZeroOptimizer, from_deepspeed_config

ZERO_2 = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 100,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "initial_scale_power": 12, "hysteresis": 3},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "contiguous_gradients": True,
    },
}


def changed(**keys):
    return {**ZERO_2, **keys}


def zero(**keys):
    return changed(zero_optimization={**ZERO_2["zero_optimization"], **keys})


def test_a_zero_2_configuration_is_read(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(ZERO_2))
    settings = from_deepspeed_config(path, 8)
    assert settings == from_deepspeed_config(ZERO_2, 8) == from_deepspeed_config(str(path), 8)
    assert (settings.train_batch, settings.micro_batch, settings.accumulation_steps, settings.world_size) == (
        64,
        4,
        2,
        8,
    )
    assert (settings.stage, settings.overlap_communication, settings.gradient_clipping) == (2, True, 1.0)
    assert (settings.reduce_bucket_elements, settings.gather_bucket_elements) == (500_000_000, 200_000_000)
    assert settings.bucket_cap_mb == 5e8 * 2 / 2**20
    assert settings.dtype == torch.float16 and settings.loss_scale == LossScale(4096.0, True, 500, 3, 1.0)
    assert settings.optimizer_class is torch.optim.AdamW
    assert settings.optimizer_options == {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    assert settings.offload_optimizer == "cpu"
    assert {note.partition(" ")[0] for note in settings.notes} == {
        "zero_optimization.offload_optimizer.device", "zero_optimization.allgather_bucket_size:",
        "zero_optimization.offload_optimizer.pin_memory", "zero_optimization.contiguous_gradients", "steps_per_print",
    }  # fmt: skip


def test_defaults_are_deepspeeds():
    settings = from_deepspeed_config({"train_micro_batch_size_per_gpu": 3}, 2)
    assert (settings.train_batch, settings.accumulation_steps, settings.stage) == (6, 1, 0)
    assert settings.reduce_bucket_elements == settings.gather_bucket_elements == 500_000_000
    assert (settings.dtype, settings.loss_scale, settings.gradient_clipping) == (torch.float32, None, None)
    assert settings.optimizer_class is None and settings.offload_optimizer is None
    adam = {"train_batch_size": 2, "optimizer": {"type": "Adam"}, "fp16": {"enabled": True}}
    settings = from_deepspeed_config(adam, 2)
    assert settings.optimizer_class is torch.optim.AdamW and settings.optimizer_options["weight_decay"] == 0
    assert settings.optimizer_options["lr"] == 1e-3
    assert settings.loss_scale == LossScale(2.0**16, True, 1000, 2, 1.0)
    adam["optimizer"]["params"] = {"adam_w_mode": False}
    assert from_deepspeed_config(adam, 2).optimizer_class is torch.optim.Adam
    adam["fp16"]["loss_scale"] = 128
    assert from_deepspeed_config(adam, 2).loss_scale == LossScale(128.0, False, 1000, 2, 1.0)
    three = {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    settings = from_deepspeed_config(three, 1)
    assert (settings.dtype, settings.overlap_communication, settings.units_in_flight) == (torch.bfloat16, True, 2)
    three["zero_optimization"] |= {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 10**9}
    settings = from_deepspeed_config(three, 1)
    assert settings.units_in_flight == 1 and "stage3_max_live_parameters has no effect" in settings.notes[-1]


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64))
def test_any_two_of_the_batch_sizes_give_the_third(micro, accumulation, world):
    total = micro * accumulation * world
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    whole = dict(zip(names, (total, micro, accumulation), strict=True))
    for left_out in (None, *names):
        settings = from_deepspeed_config({k: v for k, v in whole.items() if k != left_out}, world)
        assert (settings.train_batch, settings.micro_batch, settings.accumulation_steps) == (total, micro, accumulation)
    for name in names:
        with pytest.raises(DeepSpeedConfigError, match="expected micro batch · accumulation · ranks = "):
            from_deepspeed_config(whole | {name: whole[name] + 1}, world)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            changed(train_batch_size=48),
            "train_batch_size = 48: expected micro batch · accumulation · ranks = 4 · 2 · 8",
        ),
        (changed(train_batch_size="auto"), 'train_batch_size = "auto": that is filled in by the Hugging Face Trainer'),
        (changed(train_batch_size=64.5), "train_batch_size = 64.5: expected a whole number, 1 or more"),
        (changed(train_batch_size=True), "train_batch_size = true: expected int or float"),
        ({"gradient_accumulation_steps": 2}, "neither train_batch_size nor train_micro_batch_size_per_gpu"),
        ({"train_batch_size": 4}, "train_batch_size = 4: expected micro batch · accumulation · ranks = 0"),
        (changed(sparse_attention={}), "sparse_attention is not known here"),
        (changed(scheduler={"type": "WarmupLR"}), "scheduler is not known here"),
        (zero(stage=4), "zero_optimization.stage = 4: expected one of 0, 1, 2, 3"),
        (zero(stage=True), "zero_optimization.stage = true: expected one of"),
        (zero(zero_quantized_gradients=True), "zero_optimization.zero_quantized_gradients is not known here"),
        (zero(reduce_scatter=False), "zero_optimization.reduce_scatter = false: gradients are reduce-scattered"),
        (zero(allgather_partitions=False), "zero_optimization.allgather_partitions = false"),
        (zero(overlap_comm="yes"), 'zero_optimization.overlap_comm = "yes": expected bool'),
        (zero(reduce_bucket_size=0), "zero_optimization.reduce_bucket_size = 0: expected a whole number, 1 or more"),
        (zero(offload_param={"device": "cpu"}), 'offload_param.device = "cpu": parameters stay on their devices'),
        (zero(offload_optimizer={"device": "nvme"}), "offload_optimizer.nvme_path is missing"),
        (zero(offload_optimizer={"device": "tape"}), 'offload_optimizer.device = "tape": expected one of "none"'),
        (zero(offload_optimizer={"ratio": 0.3}), "zero_optimization.offload_optimizer.ratio is not known here"),
        (changed(zero_optimization=2), "zero_optimization = 2: expected dict"),
        (changed(bf16={"enabled": True}), "fp16.enabled and bf16.enabled are both true"),
        (changed(fp16={"auto_cast": True}), "fp16.auto_cast = true: inputs are not cast here"),
        (changed(gradient_clipping=-1), "gradient_clipping = -1: expected a norm above 0"),
        (changed(optimizer={"type": "Lamb"}), 'optimizer.type = "Lamb": expected one of "Adam", "AdamW"'),
        (
            changed(optimizer={"type": "Adam", "params": {"amsgrad": True}}),
            "optimizer.params.amsgrad is not known here",
        ),
        (changed(optimizer={"params": {}}), "optimizer.type is missing"),
        (
            changed(optimizer={"type": "Adam", "params": {"betas": [0.9]}}),
            r"optimizer.params.betas = \[0.9\]: expected two",
        ),
        ([1], "the configuration is a list"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config, said):
    with pytest.raises(DeepSpeedConfigError, match=said):
        from_deepspeed_config(config, 8)


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_file_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DeepSpeedConfigError, match="expected a JSON file|the configuration is a list"):
        from_deepspeed_config(path, 8)


def trained_from_it():
    settings = from_deepspeed_config(zero(offload_optimizer={"device": "none"}), 8)
    model = torch.nn.Linear(4, 4, dtype=settings.dtype)
    optimizer = ZeroOptimizer(
        model, settings.optimizer_class, stage=settings.stage, bucket_cap_mb=settings.bucket_cap_mb,
        **settings.optimizer_options,
    )  # fmt: skip
    model(torch.ones(1, 4, dtype=settings.dtype)).sum().backward()
    optimizer.clip_grad_norm(settings.gradient_clipping)
    optimizer.step()
    return optimizer.optimizer.param_groups[0]["lr"], optimizer.optimizer.param_groups[0]["weight_decay"]


def test_its_settings_drive_our_optimizer():
    assert Cluster(2).run(trained_from_it).results == ((3e-4, 0.1),) * 2
