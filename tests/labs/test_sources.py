"""Every lab's source: its texts fit together, and its checks catch what they should, visibly or in the hidden part.

Whether each submission earns exactly its points is asked behind the wall, in test_graded.py.
"""

import ast
import hashlib
import json

import pytest
from lab_source import SOLUTIONS, load, run_exercise
from threeloops.lab.predictions.audit import claims
from threeloops_grader.authoring.answers import wrong_answers
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.authoring.markdown.answer_file import drafts

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
    "01_roofline": {
        "matmul_work": 10,
        "attention_work": 16,
        "read_row": 12,
        "attainable": 12,
        "classify": 18,
        "costliest": 12,
        "peak_memory": 8,
        "choose_fix": 12,
    },
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
    "04_flash_attention": {
        "tiles": 10,
        "blocks": 14,
        "merging": 16,
        "one_head": 20,
        "masked": 30,
        "backward": 10,
    },
    "05_mixed_precision": {
        "decode": 12,
        "encode": 20,
        "scaled_step": 20,
        "lost": 10,
        "master_step": 14,
        "next_delayed": 12,
        "choose_recipe": 12,
    },
    "06_memory_budget": {
        "mlp": 6,
        "account": 16,
        "tracker": 18,
        "recompute": 12,
        "accumulate": 18,
        "offload": 18,
        "choose": 12,
    },
    "07_feeding_the_gpu": {
        "waits": 12,
        "forecast": 14,
        "feed": 17,
        "double_buffer": 14,
        "tune": 14,
        "read_shard": 14,
        "Sampler": 15,
    },
    "08_collectives": {
        "sum_through_rank_0": 15,
        "reduce_scatter": 25,
        "doubling_all_reduce": 20,
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
        "state_bytes": 16,
        "zero_1": 22,
        "shard_gradients": 22,
        "sharded_linear": 24,
        "forward_prefetched": 16,
    },
    "11_tensor_and_expert_parallel": {
        "parallel_mlp": 20,
        "conjugates": 22,
        "cut_attention": 20,
        "keep_within_capacity": 15,
        "expert_layer": 23,
    },
    "12_pipeline_parallel": {
        "microbatches_for": 10,
        "one_f_one_b": 20,
        "run_row": 28,
        "simulate": 28,
        "choose_plan": 14,
    },
    "13_durable_checkpoints": {
        "replace_file": 22,
        "save_step": 20,
        "newest_whole": 20,
        "BackgroundSaver": 20,
        "capture": 18,
    },
    "14_elastic_training": {
        "best_interval": 24,
        "account": 22,
        "train": 34,
        "who_hangs": 20,
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
        "measure": 8,
        "step_seconds": 16,
        "admit": 16,
        "make_room": 18,
        "fill_step": 18,
        "find_prefix": 14,
        "choose_limits": 10,
    },
    "17_production_service": {
        "percentile": 14,
        "TokenBucket": 16,
        "admit": 16,
        "stream": 22,
        "status": 10,
        "Server": 22,
    },
    "18_serving_fleet": {
        "desired": 14,
        "settle": 10,
        "target_for": 16,
        "choose_probes": 16,
        "retry_delay": 18,
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
    "20_disaggregated_serving": {
        "travel": 14,
        "send_layers": 18,
        "balance": 16,
        "route": 18,
        "keep": 16,
        "choose": 18,
    },
}
LABS = {name: load(name) for name in POINTS}
EXERCISES = [(lab, exercise) for lab, points in POINTS.items() for exercise in points]

# Of these at least nine in ten known-wrong answers fail what a student sees.
SECOND_EDITION = [name for name, lab in LABS.items() if lab.metadata.get("threeloops", {}).get("edition") == 2]

WRONG = {name: wrong_answers(find_lab(name)) for name in LABS}


def test_every_lab_stands_in_the_table():
    assert set(POINTS) == {path.parent.name for path in SOLUTIONS.glob("*/*.py")}


@pytest.mark.parametrize("name", LABS)
def test_the_exercises_share_a_hundred_points(name):
    assert LABS[name].points == POINTS[name]
    assert set(LABS[name].solutions) == set(POINTS[name])
    assert sum(POINTS[name].values()) == 100


@pytest.mark.slow  # every run grades other right answers, and lint sees that a test asks for its own answer alone
@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_released_check_accepts_a_right_answer_among_stubs(name, exercise):
    """Without its hidden part a test cell accepts the reference, and no other exercise has to be done for that."""
    lab = LABS[name]
    assert run_exercise(lab, exercise, lab.solutions[exercise], others=lab.stubs, hidden=False) is None


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_released_check_refuses_the_stub_which_says_that_it_is_one(name, exercise):
    lab = LABS[name]
    assert "is not written yet" in str(run_exercise(lab, exercise, lab.stubs[exercise], hidden=False))


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_every_exercise_has_wrong_answers_of_both_kinds(name, exercise):
    """In the second edition nearly all are caught visibly: an exercise need not have one that only hidden tests do."""
    only_hidden = [each.only_hidden for each in WRONG[name] if each.exercise == exercise]
    assert len(only_hidden) >= 3 and not all(only_hidden)
    assert any(only_hidden) or name in SECOND_EDITION


@pytest.mark.parametrize("name", LABS)
def test_all_answers_to_an_exercise_stand_together_in_the_order_of_the_exercises(name):
    exercises = list(POINTS[name])
    places = [exercises.index(draft.exercise) for draft in drafts((SOLUTIONS / name / "answers.md").read_text())]
    assert places == sorted(places)


@pytest.mark.parametrize("name", SECOND_EDITION)
def test_nine_of_ten_wrong_answers_fail_visibly(name):
    """What the list below the heading of a wrong answer says is compared with what happens in test_graded.py."""
    assert 10 * sum(each.only_hidden for each in WRONG[name]) <= len(WRONG[name])


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


def module_names(node: ast.AST):
    """Names that code binds in its module: those of functions and classes, but not what these bind inside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif not isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            yield from module_names(child)


@pytest.mark.parametrize("lab", POINTS)
def test_no_later_cell_replaces_a_function_of_the_setup(lab):
    """In a notebook all cells share one namespace, so a test would call what another cell has bound."""
    functions = {
        child.name for child in ast.parse(load(lab).setup).body if isinstance(child, ast.FunctionDef | ast.ClassDef)
    }
    for cell in find_lab(lab).master().cells:
        if cell.cell_type == "code" and "setup" not in cell.metadata.get("tags", []):
            replaced = functions & set(module_names(ast.parse(cell.source)))
            assert not replaced, f"{cell.source[:80]!r} replaces {replaced}"
