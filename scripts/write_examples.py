"""Run every script of examples/ and write docs/examples.md, which shows each of them with what it printed.

`python scripts/write_examples.py`; the tests run them too, and compare.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, IMAGES = ROOT / "docs/examples.md", ROOT / ".github/images"
EXAMPLES = {
    "meter_a_kernel": "Meter a kernel",
    "inspect_a_kernel": "Inspect the code of a kernel",
    "predict_a_kernel": "Predict the time of a kernel",
    "all_reduce_on_64_gpus": "An all-reduce on 64 GPUs",
    "ddp_timeline": "The timeline of DDP",
    "fsdp_of_your_model": "FSDP of a model of your own",
    "crash_proof_checkpoint": "A checkpoint that survives a power cut",
    "serve_a_folder": "Serve a folder",
    "simulate_a_scheduler": "Simulate a scheduler on an H100",
    "plan_a_training_run": "Plan a training run",
}
"""The title of each, in the order of the page."""
BEGINNING = """# Examples to copy

Each of these scripts is at most 40 lines long and runs on a laptop without a GPU, as `python examples/NAME.py`. Copy
the one that is nearest to your task, and put your own kernel, model or numbers in it. Below each script is what it
prints. [Use the library](library.md) explains the parts.

<!-- written by scripts/write_examples.py -->
"""


def text_of(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")


def run(name: str, folder: Path, seconds: float = 300) -> str:
    """Run the example in `folder`, and return its output.

    Raises RuntimeError if it fails or takes longer than `seconds`.
    """
    paths = [str(ROOT / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120", "THREELOOPS_DEVICE": "cpu"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"examples/{name}.py did not end in {seconds:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"examples/{name}.py ended with {done.returncode}:\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def section(name: str, printed: str, pictures: list[str]) -> str:
    """Return the section of one example: the script, its output and its pictures, which its docstring describes."""
    about = ast.get_docstring(ast.parse(text_of(name))) or ""
    shown = "".join(f"\n![{about}](../.github/images/example_{picture})\n" for picture in pictures)
    source = f"```python\n{text_of(name)}```\n\n```text\n{printed}\n```\n"
    return f"\n## {EXAMPLES[name]}\n\n[`examples/{name}.py`](../examples/{name}.py)\n\n{source}{shown}"


def main() -> int:
    sections = []
    for name in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            printed = run(name, Path(folder))
            pictures = sorted(path.name for path in Path(folder).glob("*.svg"))
            for picture in pictures:
                shutil.copyfile(Path(folder) / picture, IMAGES / f"example_{picture}")
        print(f"{name}: {len(printed.splitlines())} lines", flush=True)
        sections.append(section(name, printed, pictures))
    PAGE.write_text(BEGINNING + "".join(sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
