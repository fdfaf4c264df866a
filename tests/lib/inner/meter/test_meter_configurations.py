"""`meter(configs="all")`: every configuration of an autotuned kernel, each from the same memory."""

import inspect

import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.launches import record
from threeloops.inner.meter import meter

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)

CONFIGURATIONS = [triton.Config({"BLOCK": 8}, num_warps=1), triton.Config({"BLOCK": 16}, num_warps=2, num_stages=1)]


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes, mask=lanes < n) * 2, mask=lanes < n)


@triton.jit
def add_up(x, total, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + lanes, mask=lanes < n, other=0.0)))


@triton.jit
def scale_in_place(x, factor, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + lanes, tl.load(x + lanes, mask=lanes < n) * factor, mask=lanes < n)


def tuned(kernel, configurations=CONFIGURATIONS, **options):
    return triton.autotune(configurations, key=["n"], **options)(kernel)


def grid(given):
    return (triton.cdiv(given["n"], given["BLOCK"]),)


def findings(kernel, *arguments):
    with meter(configs="all") as traffic:
        kernel[grid](*arguments)
    return traffic.findings


class TestEveryConfiguration:
    def test_is_metered_once_and_named(self):
        y = torch.zeros(32)
        with meter(configs="all") as traffic:
            tuned(double)[grid](torch.ones(32), y, 32)
        launches = [(each.name, each.configuration, each.grid) for each in traffic.launches]
        assert launches == [
            ("double", "BLOCK=16, num_warps=2, num_stages=1", (2, 1, 1)),
            ("double", "BLOCK=8, num_warps=1, num_stages=3", (4, 1, 1)),
        ]
        assert "double[BLOCK=16, num_warps=2, num_stages=1]" in traffic.report()
        assert y.eq(2).all() and traffic.findings == []

    def test_by_default_only_the_choice_is(self):
        with meter() as traffic:
            tuned(double)[grid](torch.ones(32), torch.zeros(32), 32)
        assert [(each.title, each.configuration) for each in traffic.launches] == [("double", "")]

    def test_each_starts_from_the_same_memory_and_the_choice_leaves_its_result(self):
        x = torch.ones(32)
        with meter(configs="all") as traffic:
            tuned(scale_in_place, restore_value=["x"])[grid](x, 3.0, 32)
        assert len(traffic.launches) == 2 and x.eq(3).all() and traffic.findings == []

    def test_a_meter_for_the_choice_only_may_lie_around_or_within(self):
        kernel = tuned(double)
        with meter() as outer, meter(configs="all") as every, meter() as inner, record() as launches:
            kernel[grid](torch.ones(32), torch.zeros(32), 32)
            double[(1,)](torch.ones(8), torch.zeros(8), 8, BLOCK=8)
        assert [len(each.launches) for each in (outer, every, inner)] == [2, 3, 2]
        assert [launch.configuration for launch in launches] == ["", ""]

    def test_pruned_configurations_are_left_out(self):
        prune = {"early_config_prune": lambda configurations, named, **_: configurations[1:]}
        with meter(configs="all") as traffic:
            tuned(double, prune_configs_by=prune)[grid](torch.ones(32), torch.zeros(32), 32)
        assert [each.configuration for each in traffic.launches] == ["BLOCK=16, num_warps=2, num_stages=1"]

    def test_hooks_and_heuristics_see_their_configuration(self):
        seen = []
        configurations = [
            triton.Config({"BLOCK": block}, pre_hook=lambda given: seen.append(given["BLOCK"])) for block in (8, 16)
        ]
        heuristic = triton.heuristics({"n": lambda given: given["BLOCK"]})(double)
        with meter(configs="all") as traffic:
            triton.autotune(configurations, key=[])(heuristic)[(1,)](torch.ones(32), torch.zeros(32))
        assert [each.requested_stored for each in traffic.launches] == [64, 32]
        assert seen[-2:] == [16, 8], "the choice's hook runs again after the others"

    def test_unwritten_memory_is_unwritten_for_each(self):
        with meter(configs="all") as traffic:
            x = torch.empty(32)
            tuned(scale_in_place, restore_value=["x"])[grid](x, 2.0, 32)
            tuned(scale_in_place, restore_value=["x"])[grid](x, 2.0, 32)
        assert [len(each.findings) for each in traffic.launches] == [1, 1, 0, 0]

    def test_a_configuration_that_fails_is_named_and_memory_put_back(self):
        @triton.jit
        def picky(x, n, BLOCK: tl.constexpr):
            tl.store(x, 5.0)
            tl.static_assert(BLOCK == 8)

        x = torch.ones(1)
        with meter(configs="all"), pytest.raises(Exception) as caught:
            tuned(picky)[(1,)](x, 32)
        assert caught.value.__notes__ == ["in the configuration BLOCK=16, num_warps=2, num_stages=1"]
        assert x.item() == 1

    def test_the_autotuner_is_left_as_it_was(self):
        kernel = tuned(double)
        with meter(configs="all"):
            kernel[grid](torch.ones(32), torch.zeros(32), 32)
        assert kernel.fn is double

    def test_findings_name_the_configuration(self):
        found = findings(tuned(double), torch.ones(32), torch.zeros(20), 32)
        assert [each.launch.partition(",")[0] for each in found] == ["double[BLOCK=16", "double[BLOCK=8"]

    def test_another_value_is_refused(self):
        with pytest.raises(ValueError, match="configs = 'every': expected"), meter(configs="every"):
            pass


class TestAccumulation:
    """On a GPU the autotuner runs every configuration many times before the launch that counts."""

    def test_of_an_atomic_addition(self):
        (finding,) = findings(tuned(add_up), torch.ones(32), torch.zeros(1), 32)
        assert (finding.kind, finding.argument, finding.program) == ("accumulation", "total", (0, 0, 0))
        assert finding.line == inspect.getsourcelines(add_up.fn)[1] + 3
        assert "atomic to total, which comes out differently" in finding.message
        assert "reset_to_zero" in finding.message

    def test_of_an_update_in_place(self):
        (finding,) = findings(tuned(scale_in_place), torch.ones(32), 2.0, 32)
        assert (finding.kind, finding.argument) == ("accumulation", "x")
        assert finding.message.startswith("store to x")

    def test_not_if_the_autotuner_zeroes_or_restores_it(self):
        total = torch.zeros(1)
        assert findings(tuned(add_up, reset_to_zero=["total"]), torch.ones(32), total, 32) == []
        assert total.item() == 32
        assert findings(tuned(add_up, restore_value=["total"]), torch.ones(32), torch.ones(1), 32) == []

    def test_not_if_another_run_changes_nothing(self):
        assert findings(tuned(scale_in_place), torch.ones(32), 1.0, 32) == []
        assert findings(tuned(double), torch.ones(32), torch.zeros(32), 32) == []

    def test_not_if_there_is_nothing_to_compare(self):
        assert findings(tuned(add_up, CONFIGURATIONS[:1]), torch.ones(32), torch.zeros(1), 32) == []

    def test_of_tensors_in_tuples(self):
        @triton.jit
        def pair(totals, n, BLOCK: tl.constexpr):
            tl.store(totals[0], 1.0)
            tl.atomic_add(totals[1], 1.0)

        with meter(configs="all") as traffic:
            tuned(pair)[(1,)]((torch.zeros(1), torch.zeros(1)), 32)
        assert [finding.argument for finding in traffic.findings] == ["totals[1]"]
