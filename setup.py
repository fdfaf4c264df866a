"""Puts the released labs into the wheel, so that `threeloops start 03` works where there is no checkout.

All else is in pyproject.toml; a build step is the one thing that cannot be said there.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LABS = Path("labs")


class WithLabs(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "threeloops_grader", LABS), ignore_errors=True)  # of an earlier build
            for source, target in self._labs().items():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    def get_source_files(self):
        return [*super().get_source_files(), *map(str, self._labs())]  # what a source distribution holds

    def get_outputs(self, include_bytecode=1):
        return [*super().get_outputs(include_bytecode), *map(str, self._labs().values())]

    def _labs(self):
        """Each file that students get, with its place in the package; no checkpoint or other hidden file."""
        files = [path for path in LABS.rglob("*") if path.is_file() and not any(p[0] == "." for p in path.parts)]
        return {path: Path(self.build_lib, "threeloops_grader", path) for path in sorted(files)}


setup(cmdclass={"build_py": WithLabs})
