"""The pictures of lab 07 say what they show, and the library's pieces do what the lab asks for."""

from dataclasses import dataclass

import pytest
from threeloops.lab.drawings.inner import feeding
from threeloops.simulation import pipeline


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def labels(axes):
    return [text.get_text() for text in axes.texts]


def loop(ahead, workers=2):
    stages = [pipeline.Stage("fetch", 3.0, workers=workers), pipeline.Stage("train", 1.0)]
    return pipeline.simulate(stages, [1] * 8, ahead)


def test_recorded_loops_stand_below_each_other():
    figure = feeding.draw_recorded({"alone": loop(0), "fed": loop(4, workers=4)}, until=5.0)
    assert titles(figure) == ["alone: training 28% of the time", "fed: training 100% of the time"]


def test_two_buffers_are_faster_than_one():
    """Copies of 1 s and steps of 2 s, as in the worked example: 3 s each in turn, or 1 s and then steps alone."""
    figure = feeding.draw_buffers([0.001] * 4, 0.002)
    assert titles(figure) == ["one buffer: 12 ms for 4 steps", "two buffers: 9 ms for 4 steps"]


def test_more_samples_ahead_keep_the_trainer_busy():
    assert titles(feeding.draw_ahead(0)) == ["ahead = 0: training 22% of the time, at most 1 samples alive"]
    assert titles(feeding.draw_ahead(5)) == ["ahead = 5: training 100% of the time, at most 6 samples alive"]


def test_a_narrow_link_limits_any_number_of_workers():
    """0.6 MB at 50 MB/s take 12 ms, and a step 10."""
    crews = [feeding.utilisation(workers, 2 * workers, bandwidth=50e6) for workers in (1, 5, 10)]
    assert crews[1:] == pytest.approx([10 / 12, 10 / 12], abs=0.01) and crews[0] < 0.3
    assert labels(feeding.draw_crews({"50 MB/s": crews}).axes[0]) == ["50 MB/s"]


def test_the_explorer_names_the_limit_and_what_would_help():
    starved = feeding.draw_pipeline(30, 200, 4, 4, 2, 0, 10)
    assert "ask further ahead" in titles(starved)[0]
    fed = feeding.draw_pipeline(30, 200, 8, 4, 2, 12, 10)
    assert "largest cost: train; halving its cost gives up to 2.00×" in titles(fed)[0]


def test_an_epoch_of_objects():
    """Two readers of 16 ask at once: 30 ms, then 1 ms each on the link."""
    assert feeding.epoch_seconds([200_000, 200_000], readers=2) == pytest.approx(0.032)
    assert feeding.epoch_seconds([200_000, 200_000], readers=1) == pytest.approx(0.062)
    figure = feeding.draw_objects({1: 20.0, 20: 5.0, 2000: 5.0}, 40.0, 5.0)
    assert "tar shards" in labels(figure.axes[0])


def test_ways_to_resume_say_what_is_lost_or_repeated():
    ways = {"all": [0, 1, 2, 3], "again": [0, 1, 0, 1, 2, 3], "lost": [0, 1, 3]}
    axes = feeding.draw_ways(ways, [0, 1, 2, 3]).axes[0]
    assert labels(axes) == ["each seen once", "2 seen twice", "1 never seen"]


def test_a_killed_loop_is_drawn_around_the_moment():
    killed = loop(4)
    later = [pipeline.Interval(i.stage, i.worker, i.sample + 8, i.start + 40, i.end + 40) for i in killed.intervals]
    figure = feeding.draw_life(loop(0), killed, [7], pipeline.Trace(killed.stages, tuple(later)), seconds=50.0)
    assert titles(figure)[0].startswith("One shard at a time: training 28%")
    assert "killed,\nresumed" in labels(figure.axes[1])


def test_the_librarys_feed_asks_ahead_and_cancels_what_is_left_after_ctrl_c():
    log = []

    def train(data):
        log.append(f"train {data}")
        if data == "b":
            raise KeyboardInterrupt

    def request(key):
        log.append(f"request {key}")
        return key

    with pytest.raises(KeyboardInterrupt):
        feeding.feed(
            list("abcd"), 1, request, lambda ticket: ticket, lambda ticket: log.append(f"cancel {ticket}"), train
        )
    assert log == ["request a", "request b", "train a", "request c", "train b", "cancel c"]


@dataclass(frozen=True)
class State:
    seed: int
    epoch: int
    position: int


def test_the_librarys_sampler_counts_what_was_trained_on():
    sampler = feeding.Sampler(10, 3, 2, State(7, 2, 0))
    assert [sampler.batch_for(worker) for worker in (0, 0, 1)] == [[1, 5, 3], [0, 8, 2], [4, 6, 9]]
    sampler.trained()
    assert sampler.state() == State(7, 2, 3)
    assert [sampler.batch_for(worker) for worker in (1, 1, 0)] == [[7], None, None]
    for _ in range(3):
        sampler.trained()
    assert sampler.state() == State(7, 3, 0)
