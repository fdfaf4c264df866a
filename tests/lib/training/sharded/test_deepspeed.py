"""DeepSpeed configurations: what is read, what is noted, and what is refused by name."""

import base64
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


def half(**keys):
    return changed(fp16={**ZERO_2["fp16"], **keys})


def adam(**params):
    return changed(optimizer={"type": "Adam", "params": params})


def warmup(kind, **params):
    return changed(scheduler={"type": kind, "params": params})


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
        "zero_optimization.offload_optimizer.device", "zero_optimization.allgather_bucket_size",
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
        (changed(train_batch_size=64.5), "train_batch_size = 64.5: expected a whole number, 1 or more"),
        (changed(train_batch_size=float("inf")), "train_batch_size = Infinity: expected a whole number"),
        (changed(train_batch_size=float("nan")), "train_batch_size = NaN: expected a whole number"),
        (changed(train_batch_size=True), "train_batch_size = true: expected a number"),
        (changed(train_batch_size="64"), 'train_batch_size = "64": expected a number, without quotes'),
        ({"gradient_accumulation_steps": 2}, "neither train_batch_size nor train_micro_batch_size_per_gpu: give two"),
        ({"train_batch_sise": 4}, "neither .* Is train_batch_sise a misspelling of it"),
        ({"train_batch_size": 4}, "train_batch_size = 4: expected a multiple of ranks = 8"),
        (
            {"train_batch_size": 72, "gradient_accumulation_steps": 2},
            "train_batch_size = 72: expected a multiple of gradient_accumulation_steps · ranks = 2 · 8 = 16",
        ),
        (
            {"train_batch_size": 72, "train_micro_batch_size_per_gpu": 4},
            "train_batch_size = 72: expected a multiple of train_micro_batch_size_per_gpu · ranks = 4 · 8 = 32",
        ),
        (changed(sparse_attention={"mode": "fixed"}), "sparse_attention is switched on: it changes the model"),
        (changed(amp={"enabled": True}), "amp is switched on: Apex is not used here; use fp16 or bf16"),
        (changed(gradient_cliping=1.0), "gradient_cliping is not known here. Is gradient_clipping meant"),
        (changed(my_key=1), "my_key is not known here. Remove it if training does not depend on it"),
        (zero(stage=4), "zero_optimization.stage = 4: expected one of 0, 1, 2, 3"),
        (zero(stage="2"), 'zero_optimization.stage = "2": expected one of 0, 1, 2, 3'),
        (zero(stage=True), "zero_optimization.stage = true: expected one of"),
        (zero(zero_quantized_gradients=True), "zero_quantized_gradients = true: messages are not quantized here"),
        (zero(zero_quantized_gradients=0), "zero_quantized_gradients = 0: messages are not quantized here"),
        (zero(overlap_comm="true"), 'zero_optimization.overlap_comm = "true": expected true or false, without quotes'),
        (zero(reduce_bucket_size=0), "zero_optimization.reduce_bucket_size = 0: expected a whole number, 1 or more"),
        (
            zero(stage3_prefetch_bucket_size=0.9),
            "stage3_prefetch_bucket_size = 0.9: expected a whole number, 0 or more",
        ),
        (zero(offload_optimizer={"device": "nvme"}), "zero_optimization.offload_optimizer.nvme_path is missing"),
        (zero(offload_optimizer={"device": "tape"}), 'offload_optimizer.device = "tape": expected one of "none"'),
        (zero(offload_optimizer="cpu"), 'zero_optimization.offload_optimizer = "cpu": expected an object'),
        (changed(zero_optimization=2), "zero_optimization = 2: expected an object or true or false"),
        (changed(zero_optimization=[{"stage": 2}]), "zero_optimization = .*: expected an object"),
        (changed(bf16={"enabled": True}), "fp16.enabled and bf16.enabled are both true"),
        (changed(bf16=True), "bf16 = true: expected an object"),
        (half(auto_cast=True), "fp16.auto_cast = true: inputs are not cast here"),
        (half(initial_scale_power=2000), "fp16.initial_scale_power = 2000: expected a whole number, from 0 to 127"),
        (half(loss_scale=-5), "fp16.loss_scale = -5: expected a number, 0 or more"),
        (half(hysteresis=0), "fp16.hysteresis = 0: expected a whole number, 1 or more"),
        (half(min_loss_scale=10**400), "fp16.min_loss_scale = 1000.*: expected a number, 0 or more"),
        (changed(gradient_clipping=-1), "gradient_clipping = -1: expected a number, 0 or more"),
        (changed(gradient_clipping=float("nan")), "gradient_clipping = NaN: expected a number, 0 or more"),
        (
            changed(communication_data_type="fp32"),
            'communication_data_type = "fp32": gradients are sent in torch.float16',
        ),
        (
            changed(optimizer={"type": "Lamb"}),
            'optimizer.type = "Lamb": expected one of "Adam", "AdamW". To use another',
        ),
        (adam(amsgrad=True), "optimizer.params.amsgrad = true: DeepSpeed's Adam has no AMSGrad either"),
        (adam(lr=-1), "optimizer.params.lr = -1: expected a number, 0 or more"),
        (adam(betas=[0.9]), r"optimizer.params.betas = \[0.9\]: expected two numbers, each 0 or more and below 1"),
        (adam(betas=[0.9, 1]), r"optimizer.params.betas = \[0.9, 1\]: expected two numbers"),
        (adam(betas=[False, 0.9]), r"optimizer.params.betas = \[false, 0.9\]: expected two numbers"),
        (adam(betas=0.9), "optimizer.params.betas = 0.9: expected a list"),
        (changed(optimizer={"params": {}}), "optimizer.type is missing"),
        (changed(optimizer={"type": "Adam", "adam_w_mode": False}), "optimizer.adam_w_mode = false: .* write it there"),
        (
            warmup("OneCycle"),
            'scheduler.type = "OneCycle": expected one of WarmupLR, WarmupDecayLR, WarmupCosineLR. To',
        ),
        (warmup("WarmupDecayLR"), "scheduler.params.total_num_steps is missing"),
        (warmup("WarmupLR", warmup_type="cosine"), 'warmup_type = "cosine": expected one of "log", "linear"'),
        ({"train_batch_size": 8, "scheduler": {"type": "WarmupLR"}}, "warmup_max_lr is missing: write the rate that"),
        ([1], "the configuration is a list"),
        (None, "the configuration is a NoneType"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(config, said):
    with pytest.raises(DeepSpeedConfigError, match=said):
        from_deepspeed_config(config, 8)


@pytest.mark.parametrize("world_size", [0, 1.5, "8"])
def test_the_number_of_ranks_is_checked(world_size):
    with pytest.raises(DeepSpeedConfigError, match="world_size = .*: expected a whole number, 1 or more"):
        from_deepspeed_config(ZERO_2, world_size)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (changed(prescale_gradients=False), "prescale_gradients has no effect: gradients are divided by the number of"),
        (
            changed(activation_checkpointing={"cpu_checkpointing": True}),
            "activation_checkpointing has no effect: it saves",
        ),
        (changed(amp={"enabled": False}), "amp is switched off"),
        (
            changed(communication_data_type="fp16", sequence_parallel_size=1),
            "sequence_parallel_size has DeepSpeed's default",
        ),
        (changed(_comment="for two nodes"), "_comment is taken for a comment"),
        (changed(fp16={"auto_cast": True}), "fp16.auto_cast has no effect: the section is switched off"),
        (half(auto_cast=False), "fp16.auto_cast has DeepSpeed's default"),
        (
            zero(reduce_scatter=False),
            "zero_optimization.reduce_scatter has no effect: gradients are reduce-scattered here",
        ),
        (zero(allgather_partitions=False), "zero_optimization.allgather_partitions has no effect: parameters are"),
        (
            zero(offload_param={"device": "cpu"}),
            "zero_optimization.offload_param.device has no effect: parameters stay",
        ),
        (zero(offload_optimizer={"ratio": 0.3}), "zero_optimization.offload_optimizer.ratio has no effect"),
        (changed(zero_optimization=True), "zero_optimization = true is an old form of stage 1"),
    ],
)
def test_what_cannot_change_results_is_noted(config, note):
    assert any(each.startswith(note) for each in from_deepspeed_config(config, 8).notes)


@pytest.mark.parametrize("name", [*ZERO_2, "bf16", "scheduler"])
def test_null_counts_as_left_out(name):
    left_out = {key: value for key, value in ZERO_2.items() if key != name}
    assert from_deepspeed_config({**ZERO_2, name: None}, 8) == from_deepspeed_config(left_out, 8)


def test_values_are_taken_as_users_mean_them():
    assert from_deepspeed_config(zero(stage=2.0), 8) == from_deepspeed_config(ZERO_2, 8)
    betas = from_deepspeed_config(adam(betas=[0, 0.99]), 8).optimizer_options["betas"]
    assert betas == (0.0, 0.99) and isinstance(betas[0], float)
    assert from_deepspeed_config(changed(optimizer={"type": "adamw"}), 8).optimizer_class is torch.optim.AdamW
    assert (
        from_deepspeed_config(zero(offload_optimizer={"device": "nvme", "nvme_path": "/d"}), 8).offload_optimizer
        == "/d"
    )
    assert from_deepspeed_config(zero(prefetch_bucket_size=0), 8).units_in_flight == 1
    assert from_deepspeed_config(changed(communication_data_type="fp16"), 8) == from_deepspeed_config(ZERO_2, 8)


# Values that are "auto"

FILLED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer.params.lr": 2e-5,
    "optimizer.params.betas": [0.9, 0.95],
    "fp16.enabled": False,
    "bf16.enabled": True,
    "zero_optimization.reduce_bucket_size": 1e6,
}


def open_config():
    config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}}
    for full in FILLED:
        *sections, name = full.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = "auto"
    config["optimizer"]["type"] = "AdamW"
    return config


def test_auto_is_filled_from_the_argument_by_full_names():
    settings = from_deepspeed_config(open_config(), 8, auto={**FILLED, "scheduler.params.total_num_steps": 10})
    assert (settings.micro_batch, settings.accumulation_steps, settings.gradient_clipping) == (4, 2, 0.5)
    assert (settings.dtype, settings.reduce_bucket_elements) == (torch.bfloat16, 10**6)
    assert settings.optimizer_options["lr"] == 2e-5 and settings.optimizer_options["betas"] == (0.9, 0.95)


@pytest.mark.parametrize("name", [name for name in FILLED if "batch" not in name and "accumulation" not in name])
def test_an_auto_without_a_value_is_named_with_what_to_pass(name):
    auto = {key: value for key, value in FILLED.items() if key != name}
    with pytest.raises(DeepSpeedConfigError, match=rf'^{name} = "auto", .*: pass the values as auto={{"{name}": …}}'):
        from_deepspeed_config(open_config(), 8, auto=auto)


def test_all_values_that_are_missing_are_named_at_once():
    missing = ["optimizer.params.lr", "fp16.enabled", "zero_optimization.reduce_bucket_size"]
    with pytest.raises(DeepSpeedConfigError) as caught:
        from_deepspeed_config(open_config(), 8, auto={k: v for k, v in FILLED.items() if k not in missing})
    assert all(f'"{name}": …' in str(caught.value) for name in missing)
    assert "persistence_threshold" not in str(caught.value), "what has no effect needs no value"


@pytest.mark.parametrize("name", ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"])
def test_an_auto_batch_size_follows_from_the_other_two(name):
    settings = from_deepspeed_config(open_config(), 8, auto={k: v for k, v in FILLED.items() if k != name})
    assert (settings.train_batch, settings.micro_batch, settings.accumulation_steps) == (64, 4, 2)


def test_one_batch_size_says_nothing_about_two_others():
    auto = {k: v for k, v in FILLED.items() if k not in ("train_batch_size", "gradient_accumulation_steps")}
    with pytest.raises(DeepSpeedConfigError, match='train_batch_size = "auto"'):
        from_deepspeed_config(open_config(), 8, auto=auto)


def test_a_value_in_the_configuration_wins_and_values_for_auto_are_checked_too():
    assert from_deepspeed_config(ZERO_2, 8, auto={"gradient_clipping": 7.0}).gradient_clipping == 1.0
    with pytest.raises(DeepSpeedConfigError, match="optimizer.params.lr = -1: expected a number"):
        from_deepspeed_config(open_config(), 8, auto={**FILLED, "optimizer.params.lr": -1})
    with pytest.raises(DeepSpeedConfigError, match="auto = .*: expected a dictionary"):
        from_deepspeed_config(open_config(), 8, auto=["lr"])
    config = changed(amp={"enabled": "auto", "opt_level": "auto"})
    assert "amp is switched off" in from_deepspeed_config(config, 8, auto={"amp.enabled": False}).notes
    with pytest.raises(DeepSpeedConfigError, match="amp is switched on"):
        from_deepspeed_config(config, 8, auto={"amp.enabled": True})


# Schedules


@pytest.mark.parametrize(
    ("kind", "params", "rates"),
    [
        ("WarmupLR", {"warmup_type": "linear"}, {0: 1, 1: 1, 2: 1.5, 4: 2.5, 5: 3, 99: 3}),
        ("WarmupLR", {}, {0: 1, 1: 1, 2: 2, 4: 3, 5: 3, 99: 3}),
        ("WarmupLR", {"warmup_num_steps": 0}, {0: 1, 1: 1, 2: 3}),
        ("WarmupDecayLR", {"total_num_steps": 8}, {0: 1, 2: 2, 5: 3, 6: 2.5, 7: 2, 9: 1, 99: 1}),
    ],
)
def test_rates_are_deepspeeds_computed_by_hand(kind, params, rates):
    """From 1 to 3 in four steps. On a logarithmic scale 2 is in the middle of 1 and 4."""
    given = {"warmup_min_lr": 1, "warmup_max_lr": 3, "warmup_num_steps": 4} | params
    rate = from_deepspeed_config(warmup(kind, **given), 8).learning_rate
    for step, expected in rates.items():
        assert rate(step) == pytest.approx(expected), step


def test_a_cosine_goes_from_the_optimizers_rate_to_a_share_of_it():
    config = warmup("WarmupCosineLR", warmup_num_steps=2, total_num_steps=6, cos_min_ratio=0.5, warmup_min_ratio=0.1)
    rate = from_deepspeed_config(config, 8).learning_rate
    shares = {0: 0, 1: 0.1, 3: 0.5 + 0.5 * (1 + 0.5**0.5) / 2, 4: 0.75, 6: 0.5, 99: 0.5}
    for step, share in shares.items():
        assert rate(step) == pytest.approx(3e-4 * share), step


def test_a_warmup_ends_at_the_optimizers_rate_unless_it_names_one():
    assert from_deepspeed_config(warmup("WarmupLR"), 8).learning_rate(5000) == 3e-4
    assert from_deepspeed_config(warmup("WarmupDecayLR", total_num_steps=4000), 8).learning_rate(1001) == 1e-3
    settings = from_deepspeed_config(warmup("WarmupLR", total_num_steps=10), 8)
    assert settings.learning_rate(5000) == 3e-4 and any("total_num_steps has no effect" in n for n in settings.notes)
    assert from_deepspeed_config(ZERO_2, 8).learning_rate is None


# Files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "the configuration is a list: expected an object of keys"),
        ("", "line 1, '': .* Expected a JSON file"),
        (
            '{\n "stage": 2,\n}',
            "line [23], .* Expected a JSON file, without comments and without a comma after the last",
        ),
        ('{\n // two nodes\n "a": 1}', "line 2, '// two nodes': .* Expected a JSON file, without comments"),
        (
            '{"a": 1, "train_batch_size": 8, "train_batch_size": 16}',
            "train_batch_size is given 2 times, as 8 and 16: keep",
        ),
        ('{"zero_optimization": {"stage": 1, "stage": 1}}', "stage is given 2 times, as 1 and 1: keep one"),
        ('{"train_batch_size": NaN}', "train_batch_size = NaN: expected a whole number, 1 or more"),
        ('{"train_batch_size": 1e999}', "train_batch_size = Infinity: expected a whole number, 1 or more"),
        ('{"a":' * 200_000, "expected a JSON file"),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(DeepSpeedConfigError, match=said) as caught:
        from_deepspeed_config(path, 8)
    assert "line" not in said or str(path) in str(caught.value)


def test_a_path_without_a_file_is_named(tmp_path):
    for path in (tmp_path / "none.json", "none.json", "x" * 5000):
        with pytest.raises(DeepSpeedConfigError, match="there is no such file. Expected the path|expected a JSON file"):
            from_deepspeed_config(path, 8)
    for path in (tmp_path, "a\0b"):
        with pytest.raises(DeepSpeedConfigError, match="expected a JSON file: "):
            from_deepspeed_config(path, 8)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeepSpeedConfigError, match="binary.json: expected a JSON file: .*utf-8"):
        from_deepspeed_config(tmp_path / "binary.json", 8)


def test_text_base64_and_a_byte_order_mark_are_read_as_deepspeed_and_trainer_do(tmp_path):
    expected, text = from_deepspeed_config(ZERO_2, 8), json.dumps(ZERO_2)
    (tmp_path / "config.json").write_text("\ufeff" + text, encoding="utf-8")
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    for config in (text, encoded, tmp_path / "config.json"):
        assert from_deepspeed_config(config, 8) == expected


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
