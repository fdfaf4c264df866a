"""The table of tensor-parallel blocks: the closed form to the byte, and torch's own with a collective more."""

from benchmarks.parallel_tensor import FORMULA, OURS, SEQUENCE, TORCHS, tensor_rows


def test_blocks_send_what_the_closed_form_says_and_torchs_plan_needs_a_collective_more():
    found = {(row.what, row.by): row.median for row in tensor_rows()}
    formula = {what: value for (what, by), value in found.items() if by == FORMULA}
    assert len(formula) == 8
    for what, value in formula.items():
        assert found[what, OURS] == value
    assert formula["forward of a block: collectives"] == formula["backward of a block: collectives"] == 2
    assert (
        formula["forward of a block: sent per rank"] == formula["forward of a block, sequence parallel: sent per rank"]
    )
    forward = "forward of a block on 8 H100 SXM"
    assert 5e-5 < found[forward, SEQUENCE] < found[forward, OURS] < 2e-4
    assert found["kept for backward per rank", SEQUENCE] < found["kept for backward per rank", OURS]
    for way, of_torch in (("forward", 2), ("backward", 3)):
        what = f"{way} of a block on gloo: collectives"
        assert (found[what, OURS], found[what, TORCHS]) == (2, of_torch)
    for by in (OURS, TORCHS):
        assert found["largest error against one process, float64", by] < 1e-12
