"""Every lab's source: its texts fit together, and its checks catch what they should, visibly or in the hidden part.

Whether each submission earns exactly its points is asked behind the wall, in test_graded.py.
"""

import ast
import hashlib
import json

import pytest
from lab_source import SOLUTIONS, exercise_of, load, run_exercise
from threeloops.lab.predictions.audit import claims

POINTS = {
    "00_start_here": {
        "saxpy_bytes": 10,
        "saxpy_work": 15,
        "call_seconds": 10,
        "level_bandwidth": 10,
        "predict_seconds": 22,
        "throughput": 15,
        "capability_report": 18,
    },
    "01_roofline": {"intensity": 25, "roofline": 25, "classify": 25, "account": 25},
    "02_memory_hierarchy": {
        "build_ring": 12,
        "plateaus": 12,
        "saxpy": 18,
        "transpose": 18,
        "matmul_traffic": 10,
        "tile_of": 10,
        "matmul": 20,
    },
    "03_triton_fusion": {
        "bias_gelu": 12,
        "dropout_backward": 20,
        "softmax": 24,
        "rmsnorm_backward": 20,
        "cross_entropy": 24,
    },
    "04_flash_attention": {"traffic": 20, "merging": 25, "flash": 30, "window": 25},
    "05_mixed_precision": {"formats": 25, "scaler": 25, "masters": 25, "fp8": 25},
    "06_memory_budget": {"account": 20, "tracker": 20, "recompute": 20, "accumulate": 20, "offload": 20},
    "07_feeding_the_gpu": {"diagnose": 25, "prefetch": 25, "shards": 25, "resume": 25},
    "08_collectives": {
        "sum_through_rank_0": 15,
        "reduce_scatter": 25,
        "all_gather": 20,
        "choose_algorithm": 14,
        "fit_link": 6,
        "hierarchical_all_reduce": 20,
    },
    "09_data_parallel": {
        "average_gradients": 14,
        "start_together": 8,
        "assign_buckets": 14,
        "overlap": 28,
        "accumulate": 14,
        "scaling": 12,
        "choose_machine": 10,
    },
    "10_sharded_data_parallel": {
        "state_bytes": 14,
        "zero_1": 20,
        "shard_gradients": 20,
        "sharded_linear": 22,
        "forward_prefetched": 14,
        "choose_stage": 10,
    },
    "11_tensor_and_expert_parallel": {
        "parallel_mlp": 16,
        "conjugates": 18,
        "cut_attention": 16,
        "choose_experts": 10,
        "keep_within_capacity": 12,
        "expert_layer": 18,
        "choose_degree": 10,
    },
    "12_pipeline_parallel": {
        "microbatches_for": 10,
        "one_f_one_b": 16,
        "run_row": 28,
        "simulate": 24,
        "balance": 10,
        "choose_plan": 12,
    },
    "13_durable_checkpoints": {
        "replace_file": 20,
        "save_step": 18,
        "newest_whole": 18,
        "BackgroundSaver": 18,
        "capture": 16,
        "place_syncs": 10,
    },
    "14_elastic_training": {
        "job_life": 10,
        "best_interval": 14,
        "account": 14,
        "train": 26,
        "share_state": 14,
        "who_hangs": 12,
        "choose_spares": 10,
    },
    "15_decode_path": {
        "CachedAttention": 20,
        "decode_step": 16,
        "Blocks": 20,
        "paged_attention": 14,
        "quantize": 15,
        "accept": 15,
    },
    "16_continuous_batching": {
        "measure": 12,
        "step_seconds": 14,
        "admit": 16,
        "make_room": 18,
        "fill_step": 18,
        "find_prefix": 12,
        "choose_limits": 10,
    },
    "17_production_service": {
        "percentile": 12,
        "TokenBucket": 14,
        "find_client": 12,
        "admit": 12,
        "stream": 18,
        "Lifecycle": 16,
        "Server": 16,
    },
    "18_serving_fleet": {
        "desired": 14,
        "settle": 14,
        "target_for": 14,
        "choose_probes": 16,
        "retry_delay": 16,
        "cost_per_million": 10,
        "choose_settings": 16,
    },
    "19_capstone_plan": {
        "gpu_hours": 12,
        "schedule": 14,
        "robust": 16,
        "reserve": 12,
        "break_even": 12,
        "review": 16,
        "answer": 18,
    },
}
LABS = {name: load(name) for name in POINTS}
EXERCISES = [(lab, exercise) for lab, points in POINTS.items() for exercise in points]

# Known-wrong answers that pass what a student sees.
ONLY_HIDDEN = {
    "00_start_here": {
        "saxpy_bytes__computes_in_float32",
        "saxpy_work__any_float_will_do",
        "call_seconds__rounds_to_nanoseconds",
        "predict_seconds__one_to_three_levels",
        "capability_report__ptx_runs_everywhere",
    },
    "01_roofline": {
        "intensity__reads_the_shared_keys_for_every_head",
        "intensity__reads_repeated_rows_again",
        "roofline__ignores_the_unit_of_the_rate",
        "roofline__lets_nan_pass",
        "roofline__keeps_the_integer_type",
        "classify__largest_of_three_floors",
        "classify__adds_the_floors",
        "classify__no_tolerance_at_the_roof",
        "account__subtracts_all_descendants",
        "account__peak_at_its_last_moment",
        "account__compares_only_the_names_of_both",
    },
    "02_memory_hierarchy": set(),
    "03_triton_fusion": {
        "bias_gelu__eight_programs",
        "dropout_backward__a_block_for_each_row",
        "rmsnorm_backward__a_block_of_1024",
    },
    "04_flash_attention": {
        "flash__groups_are_interleaved",
        "flash__rounds_to_tf32",
        "merging__computes_in_float64",
        "traffic__forgets_the_batch",
        "window__does_not_round_to_a_tile",
        "window__forgets_the_groups",
    },
    "05_mixed_precision": {
        "formats__a_carry_wraps_around",
        "formats__rounds_twice",
        "fp8__remembers_infinities",
        "masters__threshold_of_half_a_spacing",
        "scaler__no_new_count_at_the_top",
    },
    "06_memory_budget": {
        "account__divides_for_the_largest_batch",
        "account__two_states_whatever_the_optimiser",
        "accumulate__accumulates_in_double",
        "accumulate__nothing_counts_is_zero",
        "offload__another_order_of_rounding",
        "offload__counts_gradients_of_half_as_float",
        "offload__fetches_into_a_buffer_in_use",
        "offload__goes_on_with_an_older_run",
        "recompute__square_root_of_the_layers",
        "recompute__the_larger_of_two_alike",
        "tracker__forgets_the_rest",
        "tracker__looks_at_single_results_only",
    },
    "07_feeding_the_gpu": {
        "diagnose__compares_neighbouring_stages_only",
        "diagnose__the_last_of_equals",
        "prefetch__cancels_only_when_the_store_fails",
        "resume__counts_a_refused_step",
        "resume__the_last_worker_comes_first",
        "shards__follows_links",
        "shards__groups_by_key_wherever_it_comes",
        "shards__reads_what_only_ustar_has",
        "shards__takes_a_sign_in_a_size",
    },
    "08_collectives": set(),
    "09_data_parallel": set(),
    "10_sharded_data_parallel": set(),
    "11_tensor_and_expert_parallel": set(),
    "12_pipeline_parallel": set(),
    "13_durable_checkpoints": set(),
    "14_elastic_training": set(),
    "15_decode_path": set(),
    "16_continuous_batching": {"find_prefix__separates_the_salt_as_a_token"},
    "17_production_service": set(),
    "18_serving_fleet": set(),
    "19_capstone_plan": set(),
}

# Of these at least nine in ten known-wrong answers fail what a student sees.
SECOND_EDITION = [name for name, lab in LABS.items() if lab.metadata.get("threeloops", {}).get("edition") == 2]

# These interpret kernels. That their other wrong answers fail visibly is a kindness: it is looked at in the long runs.
KERNEL_LABS = {"02_memory_hierarchy", "03_triton_fusion", "04_flash_attention"}
WRONG = [
    pytest.param(
        name,
        path,
        id=f"{name}-{path.stem}",
        marks=[pytest.mark.slow] if name in KERNEL_LABS and path.stem not in ONLY_HIDDEN[name] else [],
    )
    for name, lab in LABS.items()
    for path in lab.wrong_answers
]


def test_every_lab_and_no_other_answer_stands_in_the_tables():
    assert set(POINTS) == set(ONLY_HIDDEN) == {path.parent.name for path in SOLUTIONS.glob("*/*.py")}
    for name, stems in ONLY_HIDDEN.items():
        assert stems <= {path.stem for path in LABS[name].wrong_answers}


@pytest.mark.parametrize("name", LABS)
def test_the_exercises_share_a_hundred_points(name):
    assert LABS[name].points == POINTS[name]
    assert set(LABS[name].solutions) == set(POINTS[name])
    assert sum(POINTS[name].values()) == 100


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_released_check_accepts_a_right_answer_among_stubs(name, exercise):
    """Without its hidden part a test cell accepts the reference, and no other exercise has to be done for that."""
    lab = LABS[name]
    assert run_exercise(lab, exercise, lab.solutions[exercise], others=lab.stubs, hidden=False) is None


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_released_check_refuses_the_stub_which_says_that_it_is_one(name, exercise):
    lab = LABS[name]
    assert "is not written yet" in str(run_exercise(lab, exercise, lab.stubs[exercise], hidden=False))


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_what_only_the_hidden_part_catches(name, wrong):
    passes_visible = run_exercise(LABS[name], exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN[name])


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_every_exercise_has_wrong_answers_of_both_kinds(name, exercise):
    """In the second edition nearly all are caught visibly: an exercise need not have one that only hidden tests do."""
    stems = {path.stem for path in LABS[name].wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3 and stems - ONLY_HIDDEN[name]
    assert stems & ONLY_HIDDEN[name] or name in SECOND_EDITION


@pytest.mark.parametrize("name", SECOND_EDITION)
def test_nine_of_ten_wrong_answers_fail_visibly(name):
    assert 10 * len(ONLY_HIDDEN[name]) <= len(LABS[name].wrong_answers)


@pytest.mark.parametrize("name", [name for name, lab in LABS.items() if (lab.folder / "data").exists()])
def test_the_data_are_what_the_manifest_says(name):
    data = LABS[name].folder / "data"
    entries = json.loads((data / "MANIFEST.json").read_text())
    assert {entry["file"] for entry in entries} == {path.name for path in data.iterdir()} - {"MANIFEST.json"}
    for entry in entries:
        contents = (data / entry["file"]).read_bytes()
        assert set(entry) == {"file", "bytes", "sha256", "source", "licence", "what"}
        assert all(entry.values())
        assert entry["bytes"] == len(contents) < 100_000
        assert entry["sha256"] == hashlib.sha256(contents).hexdigest(), entry["file"]


@pytest.mark.parametrize("name", LABS)
def test_every_claim_of_the_lab_is_audited(name):
    """In the core notebook or in the dives, after `myth` has asked about it where a lab asks at all."""
    calls = [
        node
        for path in sorted(LABS[name].folder.glob(f"{name}*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    audited, asked = (
        {call.args[0].value for call in calls if getattr(call.func, "id", "") == word} for word in ("audit", "myth")
    )
    assert asked in (set(), audited)
    assert audited == {claim.id for claim in claims().values() if claim.lab == name[:2]}
