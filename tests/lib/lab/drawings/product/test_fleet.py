"""The roll-over, and the day, of which lab 18 draws pictures."""

from types import SimpleNamespace

from threeloops.lab.drawings import draw_day, draw_roll_over, roll_over


def test_a_roll_over_drops_nothing():
    frames = roll_over(replicas=4, load=40, warm_up=10, hold=20, period=5)
    ready = [sum(state == "ready" for _, _, state, _ in frame.replicas) for frame in frames]
    assert min(ready) == 4
    assert max(frame.waiting for frame in frames) < 1e-6
    last = {state: version for _, version, state, _ in frames[-1].replicas}
    assert last == {"gone": 1, "ready": 2}
    for frame in frames:
        for (_, _, state, running), probe in zip(frame.replicas, frame.probes, strict=True):
            assert running <= 16
            assert running == 0 or state in ("ready", "draining")
            assert probe != "200" or state == "ready"
    assert len(draw_roll_over(frames[60]).axes) == 1


def test_a_day_shows_demand_replicas_and_queue():
    moments = [SimpleNamespace(seconds=900 * n, rate=4.0, ready=2, starting=n % 2, waiting=0.0) for n in range(96)]
    drawn = draw_day(moments, 0.5, "a day")
    fleet, queue = drawn.axes
    assert fleet.get_title(loc="left") == "a day"
    assert [text.get_text() for text in fleet.texts] == ["demand, in full replicas", "ready", "starting"]
    assert max(fleet.lines[0].get_ydata()) == 3
    assert queue.get_xlabel() == "hour of the day"
    assert [text.get_text() for text in queue.texts] == ["no request waits"]
