"""A process that is killed while it saves leaves the last checkpoint, or the new one, whole."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_kill_loses_what_was_acknowledged(tmp_path, kills):
    # What a killed process wrote stays in the page cache, synced or not: memory is as good a place, and faster.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.checkpoint_kills", "threeloops", folder, str(kills)],
            capture_output=True, text=True, timeout=300, cwd=ROOT,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["kills"], found["lost"], found["broken"]) == (kills, 0, 0), found
    assert found["interrupted"] >= kills / 4, f"most kills met no save: {found}"
    assert found["acknowledged"] >= kills
