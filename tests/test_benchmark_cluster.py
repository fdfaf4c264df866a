"""The cluster benchmark predicts from exchanges and additions alone, and keeps every sample."""

import json
import math

import pytest
from threeloops.training.collectives import Link, ring_all_reduce_cost

from benchmarks.cluster import EXCHANGE, GLOO, OURS, RANKS, REDUCTION, SIZES, gloo_part, gloo_rows, near, parameters


def made_rows(link, slower=1.0, gloo=1.0):
    """What would be measured if the model held, our ring were `slower` and gloo took `gloo` times as long."""
    rows = []
    for size in SIZES:
        ring = ring_all_reduce_cost(size // 4, 4, RANKS, link).seconds
        half = size // 2
        seconds = {
            OURS: ring * slower, GLOO: ring * gloo,
            EXCHANGE: link.seconds(half), REDUCTION: link.reduce_seconds * half,
        }  # fmt: skip
        rows += [
            {"size": size, "by": by, "seconds": [each, each * 0.9, each * 1.5], "others": [0.1, 0.0, 0.2]}
            for by, each in seconds.items()
        ]
    return rows


def test_where_the_model_holds_every_prediction_is_the_median():
    link = Link(150e-6, 1e9, 1e-10)
    part = gloo_part(made_rows(link))
    assert len(part.predictions) == len(SIZES) == len(part.series) // 2
    assert all(abs(each.difference) < 1e-9 for each in part.predictions)
    assert part.facts["predicted_enough"] and part.facts["large_enough"]
    assert part.facts["fitted_to_all"] == pytest.approx(parameters(link))


def test_times_that_do_not_grow_with_the_size_can_be_written_down():
    rows = made_rows(Link(150e-6, 1e9, 1e-10))
    for row in rows:
        row["seconds"] = [1e9 / (1e9 + row["size"])] * 3
    part = gloo_part(rows)
    assert part.facts["fitted_to_all"]["one_over_beta_s_byte"] == 0
    json.dumps(part.facts, allow_nan=False)


def test_losses_are_said():
    part = gloo_part(made_rows(Link(150e-6, 1e9, 1e-10), slower=1.3, gloo=0.5))
    assert not part.facts["predicted_enough"] and not part.facts["large_enough"]
    assert all(each.difference == pytest.approx(0.3) for each in part.predictions)
    assert [note for note in part.notes if note.startswith("64 KiB: ") and "+30.0%" in note and "0.38 times" in note]
    assert len(part.notes) == len(SIZES) + 1 and part.notes[-1].startswith("other processes kept 0.1 of")


def test_a_line_is_fitted_to_neighbours_only():
    assert near(1 << 20, SIZES) == [1 << power for power in range(18, 23)]
    assert near(SIZES[0], SIZES) == [1 << 16, 1 << 17, 1 << 18]


@pytest.mark.slow
def test_real_processes_leave_every_sample():
    part = gloo_rows([1 << 16, 1 << 17], rounds=2, seconds=300)
    rows = part.facts["rows"]
    assert {(row["size"], row["by"]) for row in rows} == {
        (size, by) for size in (1 << 16, 1 << 17) for by in (OURS, GLOO, EXCHANGE, REDUCTION)
    }
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in rows)
    assert all(math.isfinite(each) and each >= 0 for row in rows for each in row["others"])
    json.dumps(part.facts, allow_nan=False)
