"""Lab 02: its recorded pointer chase."""

import json

from lab_source import load


def test_the_recorded_chase_grows_with_a_time_for_every_size():
    recorded = json.loads((load("02_memory_hierarchy").folder / "data" / "chase_cpu.json").read_text())
    assert recorded["sizes"] == sorted(recorded["sizes"])
    assert len(recorded["sizes"]) == len(recorded["nanoseconds"])
