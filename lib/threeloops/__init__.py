"""The library behind the course. Import the module that you need: `threeloops.inner.roofline`, `threeloops.lab`, …

`import_on_demand` keeps the packages light: importing one module of a package does not import the others.
`EXTRAS` keeps the installation small: packages that only some modules need come with an extra of the distribution.
Importing such a module without them raises an error that names the extra.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["EXTRAS", "extra_of", "import_on_demand"]
__version__ = "0.1.0"

EXTRAS = {
    "pictures": "PIL cycler matplotlib",
    "serve": "fastapi h11 httpx jinja2 llguidance opentelemetry prometheus_client redis starlette tokenizers uvicorn",
    "plan": "docx fpdf pptx xlsxwriter",
    "labs": "IPython ipywidgets jupytext nbformat packaging traitlets yaml",
    "grade": "bleach jsonschema nbconvert nbgrader papermill pygments sqlalchemy tornado",
    "lms": "jwcrypto pylti1p3 requests urllib3",
    "cluster": "submitit",
    "site": "furo myst_nb sphinx",
}  # fmt: skip
"""The packages that each extra of the distribution brings, by the names under which they are imported."""


def extra_of(package: str) -> str | None:
    """Return the extra that brings a package, or None if every installation has it or none does."""
    return next((extra for extra, names in EXTRAS.items() if package in names.split()), None)


def import_on_demand(package: str) -> None:
    """Let a package import its public names when they are first used (PEP 562).

    The names are those that the `if TYPE_CHECKING:` block of its `__init__.py` imports, so type checkers and editors
    see ordinary imports:

    >>> if TYPE_CHECKING:
    ...     from threeloops.product.batching.scheduler import Scheduler
    ... else:
    ...     import_on_demand(__name__)

    A name hides a module of the package that is called the same: in `from threeloops.training.planning import memory`
    it is the function, however much has been imported before.

    Raises ImportError if the package was installed without its source.
    """
    import ast

    module = sys.modules[package]
    loader: Any = module.__spec__ and module.__spec__.loader
    if (source := loader.get_source(package)) is None:
        raise ImportError(f"{package} is installed without its source, which says where its names are", name=package)
    blocks = [n for n in ast.parse(source).body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    imports = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    origins = {alias.asname or alias.name: (n.module, alias.name) for n in imports for alias in n.names}
    vars(module)["__origins__"] = origins
    module.__class__ = _Package


class _Package(ModuleType):
    """A package that imports its public names when they are first used."""

    __origins__: dict[str, tuple[str, str]]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__origins__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        module, attribute = self.__origins__[name]
        if module == self.__name__:
            return import_module(f"{module}.{attribute}")
        return getattr(import_module(module), attribute)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a name, except that importing a module does not hide a public name that is called the same."""
        own_module = self.__origins__.get(name, (self.__name__,))[0] == self.__name__
        if own_module or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__origins__})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: cloudpickle knows plain modules only."""
        return import_module, (self.__name__,)


class _MissingExtra:
    """The last finder of modules. It fails if this project imports a package that an absent extra would bring.

    It answers import statements only. Another library that looks for the same package gets Python's own answer.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        extra = extra_of(name)
        if extra is None:
            return
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            frame = frame.f_back
        importer = str(frame.f_globals.get("__name__"))
        if importer.partition(".")[0] in ("threeloops", "threeloops_grader"):
            reason = f"No module named {name!r}, which {importer} needs"
            raise ModuleNotFoundError(f'{reason}: pip install "threeloops[{extra}]"', name=name)


sys.meta_path.append(_MissingExtra)
