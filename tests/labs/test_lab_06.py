"""Lab 06: its texts fit together, and its checks catch what they should, visibly or in the hidden part."""

import ast

import pytest
from lab_source import exercise_of, load, run_exercise

LAB = load("06_memory_budget")
POINTS = dict.fromkeys(("account", "tracker", "recompute", "accumulate", "offload"), 20)
ONLY_HIDDEN = {
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
}


def test_five_exercises_share_a_hundred_points():
    assert LAB.points == POINTS
    assert sum(POINTS.values()) == 100


@pytest.mark.parametrize("exercise", POINTS)
def test_the_released_check_still_checks(exercise):
    """Without its hidden part a test cell accepts the reference and refuses the stub, which says that it is one."""
    assert run_exercise(LAB, exercise, LAB.solutions[exercise], hidden=False) is None
    assert "is not written yet" in str(run_exercise(LAB, exercise, LAB.stubs[exercise], hidden=False))


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_what_only_the_hidden_part_catches(wrong):
    passes_visible = run_exercise(LAB, exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN)


@pytest.mark.parametrize("exercise", POINTS)
def test_every_exercise_has_wrong_answers_of_both_kinds(exercise):
    stems = {path.stem for path in LAB.wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3
    assert stems & ONLY_HIDDEN and stems - ONLY_HIDDEN


def test_other_right_schedules_pass():
    """The last segment may be recorded at once: nothing says that it must be computed twice."""
    frugal = LAB.solutions["recompute"].replace(
        "    actions = []\n    for layer in range(layers):",
        "    actions = []\n    for layer in range(layers - k):",
    )
    frugal = frugal.replace(
        "    for first in reversed(range(0, layers, k)):\n        actions.append",
        '    actions.append(("keep", layers - k))\n'
        "    for first in reversed(range(0, layers, k)):\n        actions.append",
    )
    assert frugal.count("layers - k") == 2
    assert run_exercise(LAB, "recompute", frugal) is None


def test_a_tracker_of_another_kind_passes():
    """Finalizers in place of weak references with callbacks, and sizes kept in a dictionary."""
    answer = """
class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes, self.peak, self.made = {}, 0, 0

    def note(self, tree, size_of):
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self.sizes:
                storage = leaf.untyped_storage()
                self.sizes[storage._cdata] = size_of(storage)
                self.made += size_of(storage) is not None
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.peak = max(self.peak, self.live())

    def live(self):
        return sum(size or 0 for size in self.sizes.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.note((args, kwargs), lambda storage: None)
        result = function(*args, **(kwargs or {}))
        self.note(result, lambda storage: storage.nbytes())
        return result


def live_bytes(run):
    with Watch() as watch:
        run()
    return Live(watch.peak, watch.live(), watch.made)
"""
    assert run_exercise(LAB, "tracker", answer) is None


def test_every_claim_of_the_lab_is_audited():
    from threeloops.lab.audit import claims

    text = (LAB.folder / f"{LAB.name}.py").read_text()
    audited = {
        node.args[0].value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "audit"
    }
    assert audited == {claim.id for claim in claims().values() if claim.lab == "06"}
