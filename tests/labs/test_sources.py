"""Every lab's source: its texts fit together, and its checks catch what they should, visibly or in the hidden part.

Whether each submission earns exactly its points is asked behind the wall, in test_graded.py.
"""

import ast
import hashlib
import json

import pytest
from lab_source import SOLUTIONS, exercise_of, load, run_exercise
from threeloops.lab.course.audit import claims

POINTS = {
    "00_start_here": {
        "capability_report": 25,
        "saxpy_work": 25,
        "repaired_throughput": 25,
        "first_prediction": 25,
    },
    "01_roofline": {"intensity": 25, "roofline": 25, "classify": 25, "account": 25},
    "02_memory_hierarchy": {"latency": 25, "vector_width": 25, "coalescing": 25, "tiles": 25},
    "03_triton_fusion": {"fused_chain": 25, "online_softmax": 25, "rmsnorm": 25, "cross_entropy": 25},
    "04_flash_attention": {"traffic": 20, "merging": 25, "flash": 30, "window": 25},
    "05_mixed_precision": {"formats": 25, "scaler": 25, "masters": 25, "fp8": 25},
    "06_memory_budget": {"account": 20, "tracker": 20, "recompute": 20, "accumulate": 20, "offload": 20},
    "07_feeding_the_gpu": {"diagnose": 25, "prefetch": 25, "shards": 25, "resume": 25},
}
LABS = {name: load(name) for name in POINTS}
EXERCISES = [(lab, exercise) for lab, points in POINTS.items() for exercise in points]

# Known-wrong answers that pass what a student sees.
ONLY_HIDDEN = {
    "00_start_here": {
        "capability_report__skips_unknown_entries",
        "capability_report__minus_one_is_the_last_gpu",
        "capability_report__newer_gpus_always_run",
        "capability_report__one_core_has_one_rank",
        "capability_report__a_gpu_listed_twice_counts_once",
        "saxpy_work__divides_by_nothing",
        "saxpy_work__unknown_dtypes_have_four_bytes",
        "repaired_throughput__harmonic_mean_of_rates",
        "repaired_throughput__zip_drops_runs_in_silence",
        "first_prediction__a_full_cache_holds_nothing",
        "first_prediction__knows_two_levels_only",
        "first_prediction__every_element_has_four_bytes",
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
    "02_memory_hierarchy": {
        "latency__only_rotations_of_one_shuffle",
        "vector_width__allocates_the_default_dtype",
        "coalescing__eight_elements_whatever_their_size",
        "tiles__sums_in_float16",
    },
    "03_triton_fusion": {
        "cross_entropy__exponentials_without_the_maximum",
        "cross_entropy__multiplies_the_ignored_row_by_zero",
        "cross_entropy__the_ignored_index_is_minus_100",
        "cross_entropy__trips_over_minus_infinity",
        "fused_chain__backward_forgets_the_scale",
        "online_softmax__no_maximum",
        "rmsnorm__squares_in_float16",
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
}

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
    stems = {path.stem for path in LABS[name].wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3
    assert stems & ONLY_HIDDEN[name] and stems - ONLY_HIDDEN[name]


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
    audited = {
        node.args[0].value
        for node in ast.walk(ast.parse((LABS[name].folder / f"{name}.py").read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "audit"
    }
    assert audited == {claim.id for claim in claims().values() if claim.lab == name[:2]}
