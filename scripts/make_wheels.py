"""Wheels for a machine without a network: `python scripts/make_wheels.py FOLDER [PYTHON]`, such as `wheels 3.12`.

They are what executing labs takes beyond an image that has PyTorch, in the versions of requirements.txt. There, in the
repository's root: `pip install --no-index --no-deps --target SITE FOLDER/*.whl`, and SITE goes on PYTHONPATH.
"""

import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "grader")]
from threeloops_grader.machine.installed import closure

BROUGHT = (
    "torch", "triton", "numpy", "matplotlib", "cycler", "pillow", "fonttools", "psutil", "packaging", "rich", "typer",
    "pytest", "hypothesis", "jinja2",
)  # fmt: skip
"""What such an image has installed, in versions that may be older than those here."""
CARRIED = (
    "papermill", "jupytext", "ipykernel", "ipywidgets", "cloudpickle", "jaxtyping", "msgspec", "fsspec", "safetensors",
    "fastapi", "uvicorn", "httpx", "prometheus_client", "opentelemetry-sdk", "redis", "tokenizers", "llguidance",
    "python-docx", "XlsxWriter", "fpdf2", "python-pptx",
)  # fmt: skip
"""What the labs and the evidence need besides, with what those need: labs 17 and 18 serve, lab 19 writes documents."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def pins() -> list[str]:
    """What is to be carried, in the versions installed here, which are those of requirements.txt.

    What a brought package needs here, an older version there may not: typer 0.27 came without pydantic, unlike 0.29.
    """
    needed = closure(CARRIED) - set(map(canonicalize_name, BROUGHT))
    return [f"{name}=={metadata.version(name)}" for name in sorted(needed)]


def main(folder: str, python: str = f"{sys.version_info.major}.{sys.version_info.minor}") -> int:
    tags = [option for name in PLATFORMS for option in ("--platform", f"{name}_{platform.machine()}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(pins()) + "\n")
        listed.flush()
        done = subprocess.run([*command, "--python-version", python, *tags, "--dest", folder, "-r", listed.name])
    if done.returncode == 0:
        wheels = list(Path(folder).glob("*.whl"))
        size = sum(wheel.stat().st_size for wheel in wheels) / 2**20
        print(f"{folder}: {len(wheels)} wheels for Python {python}, {size:.1f} MiB")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
