"""The benchmark of disaggregated serving: what wins where, flow balance above the simulation, and tiers by hand."""

from dataclasses import replace

import pytest
from threeloops.hardware.probe import probe
from threeloops_grader.machine.provenance import provenance

from benchmarks.disaggregated import measure
from benchmarks.disaggregated_services import (
    CHUNKS,
    GPUS,
    SERVICES,
    WHOLE,
    Ways,
    balance_rows,
    goodput_rows,
    split_name,
)
from benchmarks.disaggregated_tiers import tier_rows

SUMMARIES = next(service for service in SERVICES if service.name == "summaries")


@pytest.fixture(scope="module")
def ways():
    return Ways(replace(SUMMARIES, guess=8.0, requests=40), seeds=1, precision=0.3)


def test_each_way_uses_all_machines_and_has_a_goodput(ways):
    machines = [each.prefill.machines + each.decode.machines for each in ways.deployments.values()]
    assert machines == [GPUS] * 5 and list(ways.deployments) == [WHOLE, CHUNKS, *map(split_name, range(1, GPUS))]
    rows = goodput_rows(ways)
    assert {row.by for row in rows} == set(ways.deployments) and all(min(row.samples) > 0 for row in rows)
    (peer,) = [row for row in rows if row.peer]
    assert peer.by in (WHOLE, CHUNKS) and peer.median == max(row.median for row in rows if row.by in (WHOLE, CHUNKS))
    rates = {row.by: row.median for row in rows}
    assert rates[split_name(2)] > 1.2 * rates[split_name(1)], "one machine is too few for long prompts"
    assert [round(each.measured / GPUS, 9) for each in balance_rows(ways)] == [
        round(rates[split_name(number)], 9) for number in range(1, GPUS)
    ]


def test_reuse_counts_where_documents_come_once():
    rows = {(row.what, row.by): row for row in tier_rows(150, 1)}
    what = "instructions among documents: share of blocks found"
    assert rows[what, "by reuse and cost"].median > rows[what, "first in, first out"].median
    assert all(0 < row.median < 1 for row in rows.values())


@pytest.mark.slow  # four services, five ways each
def test_the_result_can_be_kept():
    result = measure(provenance(probe(), "cpu"), quick=True)
    assert len(result.predictions) == 4 * 3 + 2 * 7, "splits of each service, and quantities of two traces"
    assert len(result.series) == 4 * 5 + 3 * 3 * 2 + 2 * 2, "ways, tiers, and processes"
    assert result.to_json() and result.tables()
