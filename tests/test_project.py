"""The project's own files agree with each other: pins, ranges, commands, links, packages, environment."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from threeloops import EXTRAS, extra_of
from threeloops_grader.authoring.labs import all_labs
from threeloops_grader.authoring.lint import lint

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for part in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(part))
]
MINOR_VERSIONS = ["3.11", "3.12", "3.13", "3.14"]
IMPORTED_AS = {
    "IPython": "ipython", "PIL": "pillow", "docx": "python-docx", "fpdf": "fpdf2",
    "opentelemetry": "opentelemetry-api", "pptx": "python-pptx", "pydantic_core": "pydantic", "yaml": "pyyaml",
}  # fmt: skip


def pins(name="requirements.txt"):
    """The requirements of a file, in order."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def project_files():
    """Files that belong to the project: what git tracks or would track, else everything that is not built."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    built = (".venv", "work", "reports", "__pycache__")
    return [p for p in ROOT.rglob("*") if p.is_file() and not any(part.startswith(built) for part in p.parts)]


def targets():
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt", "requirements-peers.txt"])
def test_every_requirement_is_pinned_once_to_one_version(name):
    found = pins(name)
    assert all([s.operator for s in r.specifier] == ["=="] and "*" not in str(r.specifier) for r in found)
    names = [canonicalize_name(r.name) for r in found]
    assert sorted(set(names)) == sorted(names)


def test_torch_and_triton_lead_and_the_cuda_wheels_own_packages_are_left_to_it():
    names = [r.name for r in pins()]
    assert names[:2] == ["torch", "triton"]
    assert not [name for name in names if name.startswith(("nvidia", "cuda"))]


@pytest.mark.parametrize("python", MINOR_VERSIONS)
def test_the_tests_pins_repeat_none_of_the_courses(python):
    def names(file):
        there = {"python_version": python}
        return {r.name.lower() for r in pins(file) if r.marker is None or r.marker.evaluate(there)}

    assert not names("requirements.txt") & names("requirements-test.txt")


def test_nothing_is_pinned_that_makes_every_import_of_nbformat_slow():
    """jsonschema imports rfc3987-syntax wherever it is installed, and that builds 38 parsers."""
    assert "rfc3987-syntax" not in {canonicalize_name(r.name) for r in pins()}


def test_environment_yml_installs_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda, pip = environment["dependencies"][:-1], environment["dependencies"][-1]["pip"]
    assert [str(Requirement(line)) for line in pip] == [str(r) for r in pins()]
    assert conda == [f"python {PYPROJECT['project']['requires-python']}", "pip"]


def test_one_line_of_environment_yml_asks_for_the_cpu_wheel_of_torch_as_make_venv_does():
    text = (ROOT / "environment.yml").read_text()
    with_line = yaml.safe_load(text.replace("# - --extra-index-url", "- --extra-index-url"))
    option, *same = with_line["dependencies"][-1]["pip"]
    assert same == yaml.safe_load(text)["dependencies"][-1]["pip"]
    assert f'CPU_WHEELS = "{option.partition(" ")[2]}"' in (ROOT / "scripts/make_venv.py").read_text()


def test_the_ranges_of_pyproject_admit_the_pins():
    pinned = {
        canonicalize_name(r.name): next(iter(r.specifier)).version for r in [*pins("requirements-test.txt"), *pins()]
    }
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    for requirement in map(Requirement, [*PYPROJECT["project"]["dependencies"], *chain.from_iterable(extras)]):
        if requirement.name == "threeloops":
            continue
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    backend = Requirement(PYPROJECT["build-system"]["requires"][0])
    assert backend.specifier.contains(pinned[backend.name])


@pytest.mark.parametrize("files", [["requirements.txt"], ["requirements.txt", "requirements-test.txt"]])
def test_whatever_a_pinned_package_needs_is_pinned_too(files):
    """Read from the installed packages: their own requirements, for this interpreter, without extras."""
    found = [r for name in files for r in pins(name) if r.marker is None or r.marker.evaluate()]
    named = {canonicalize_name(r.name) for r in found}
    for pinned in found:
        try:
            needs = metadata.requires(pinned.name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            ours = need.marker is None or need.marker.evaluate({"extra": ""})
            if ours and not need.name.startswith(("nvidia", "cuda")):
                assert canonicalize_name(need.name) in named, f"{pinned.name} needs {need}"


def test_every_pin_can_be_had_from_the_first_patch_of_each_python_on():
    """Debian 12 has Python 3.11.2: a pin that wants 3.11.5 leaves its users without the course."""
    for pinned in (*pins(), *pins("requirements-test.txt")):
        try:
            wanted = metadata.metadata(pinned.name)["Requires-Python"] or ""
        except metadata.PackageNotFoundError:
            continue
        missed = [version for version in MINOR_VERSIONS if f"{version}.0" not in SpecifierSet(wanted)]
        assert not missed, f"{pinned} needs Python {wanted}"


def imported_packages(path):
    """Top-level packages that a file imports anywhere, lazily included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def declared(lines):
    """The distributions that requirements name, apart from the course itself with other extras."""
    return {canonicalize_name(Requirement(line).name) for line in lines} - {"threeloops"}


def test_every_package_that_the_course_imports_is_declared_and_the_library_knows_which_extra_brings_it():
    """Only then does an error name the extra to install."""
    core = declared(PYPROJECT["project"]["dependencies"])
    own = set(sys.stdlib_module_names) | {"threeloops", "threeloops_grader"}
    for path in sources("grader", "lib"):
        for package in imported_packages(path) - own:
            name = canonicalize_name(IMPORTED_AS.get(package, package))
            brought = name in core or extra_of(package)
            assert brought, f"{path.relative_to(ROOT)} imports {package}: add it to pyproject.toml and EXTRAS"


def test_the_library_and_pyproject_agree_on_what_each_extra_brings():
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert list(EXTRAS) == [extra for extra in extras if extra != "all"]
    for extra, packages in EXTRAS.items():
        for package in packages.split():
            name = canonicalize_name(IMPORTED_AS.get(package, package))
            assert name in declared(extras[extra]), f"EXTRAS says that {extra} brings {package}"
    named = {extra: Requirement(line).extras for extra in extras for line in extras[extra] if "threeloops[" in line}
    assert named["site"] == {"grade"}, "nobody needs the site to learn or to teach, so it is not in all"
    assert named["grade"] == {"labs"}
    reached = {"all"}
    while more := set().union(*(named.get(extra, set()) for extra in reached)) - reached:
        reached |= more
    assert reached == {*EXTRAS, "all"} - {"site"} and len(extras["all"]) == 1, "all is the sum of the others"


def test_every_folder_with_code_is_packaged_and_every_data_file_with_it():
    from setuptools import find_namespace_packages

    settings = PYPROJECT["tool"]["setuptools"]
    find = settings["packages"]["find"]
    packaged = {
        p for where in find["where"] for p in find_namespace_packages(str(ROOT / where), include=find["include"])
    }
    for top, where in settings["package-dir"].items():
        folder = ROOT / where
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            if path.suffix == ".py":
                assert ".".join((top, *inside.parent.parts)) in packaged, path
            elif path.is_file() and "__pycache__" not in path.parts:
                assert any(inside.match(pattern.removeprefix("**/")) for pattern in settings["package-data"][top]), path


def test_the_commands_that_the_package_installs_exist():
    groups = [PYPROJECT["project"]["scripts"], *PYPROJECT["project"]["entry-points"].values()]
    for target in chain.from_iterable(group.values() for group in groups):
        module, _, name = target.partition(":")
        tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
        assert name in {getattr(node, "name", None) for node in tree.body}, target


def test_every_make_command_that_is_written_down_is_a_target():
    places = [
        *DOCUMENTS,
        ".ci/run",
        ".github/workflows/course.yml",
        ".devcontainer/devcontainer.json",
        "requirements-peers.txt",
    ]
    for place in places:
        text = (ROOT / place).read_text()
        for command in re.findall(r"(?:^|[`\"]|run: )make ([a-z][a-z-]*)", text, re.MULTILINE):
            assert command in targets(), f"{place}: make {command}"


def test_every_threeloops_command_that_is_written_down_exists():
    from threeloops_grader.cli import _app

    def names(app):
        groups = {group.name for group in app.registered_groups}
        return groups | {command.name or command.callback.__name__ for command in app.registered_commands}

    groups = {group.name: names(group.typer_instance) for group in _app.registered_groups}
    known = names(_app) | groups.keys()
    for place in (*DOCUMENTS, "Makefile", ".pre-commit-config.yaml"):
        text = (ROOT / place).read_text()
        for command, step in re.findall(r"(?:^|[`/])threeloops ([a-z]+)(?: ([a-z]+))?", text, re.MULTILINE):
            assert command in known, f"{place}: threeloops {command}"
            assert command not in groups or not step or step in groups[command], f"{place}: threeloops {command} {step}"


def test_the_documents_link_to_files_that_exist():
    """`../../` above the repository is a page of the site that hosts it; a branch there needs a workflow."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"`[^`]*`", "", (ROOT / document).read_text())):
            branch = re.fullmatch(r"\.\./\.\./tree/(\w+)", target)
            place = (ROOT / document).parent / target
            if branch:
                assert (ROOT / f".github/workflows/{branch[1]}.yml").exists(), f"{document}: who makes {target}?"
            elif not target.startswith("http") and ROOT in place.resolve().parents:
                assert place.exists(), f"{document} links to {target}"


def test_make_help_lists_the_commands_and_runs_without_an_environment():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for command in ("course", "test", "test-all", "lab", "release", "evidence"):
        assert re.search(rf"^  make {command} ", done.stdout, re.MULTILINE), done.stdout


def test_evidence_takes_the_environment_or_the_interpreter_at_hand_and_installs_nothing():
    done = subprocess.run(["make", "-n", "evidence"], cwd=ROOT, capture_output=True, text=True)
    assert (
        "-m threeloops_grader.cli evidence" in done.stdout
        and "pip" not in done.stdout
        and "make_venv" not in done.stdout
    )


def test_ci_runs_both_commands_on_every_python_that_the_package_admits():
    workflow = yaml.safe_load((ROOT / ".github/workflows/course.yml").read_text())
    cpu, gpu = workflow["jobs"]["cpu"], workflow["jobs"]["gpu"]
    assert cpu["strategy"]["matrix"]["python"] == MINOR_VERSIONS
    admitted = Requirement("python" + PYPROJECT["project"]["requires-python"]).specifier
    assert [v for v in (f"3.{n}" for n in range(9, 20)) if admitted.contains(v)] == MINOR_VERSIONS
    commands = "\n".join(step.get("run", "") for step in cpu["steps"])
    assert "make course FRESH=1" in commands and "make test" in commands
    assert "make evidence" in [step.get("run") for step in gpu["steps"]]
    script = (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert re.search(r"^make course FRESH=1 ARGS=\"--jobs 2\"", script, re.M) and re.search(
        r"^make test$", script, re.M
    )
    assert subprocess.run(["bash", "-n", ROOT / ".ci/run"]).returncode == 0


def test_the_site_of_a_pull_request_is_not_published():
    """Its branch may be the `main` of a fork, which passes the filter of branches."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text())
    assert "workflow_run.event != 'pull_request'" in workflow["jobs"]["pages"]["if"]


def test_workflows_name_actions_by_commit_and_write_only_what_they_publish():
    workflows = {path.name: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
    teaching = {path.name: path.read_text() for path in (ROOT / "docs/teaching").glob("github_*.yml")}
    assert len(workflows) == 3 and len(teaching) == 2
    written = {}
    for name, text in (workflows | teaching).items():
        for action in re.findall(r"uses: (.*)", text):
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), f"{name}: {action}"
        assert text.count("actions/checkout@") == text.count("persist-credentials: false"), name
        workflow = yaml.safe_load(text)
        assert "write" not in workflow["permissions"].values(), name
        for job in workflow["jobs"].values():
            kinds = {kind for kind, access in job.get("permissions", {}).items() if access == "write"}
            written |= {name: kinds} if kinds else {}
    assert written == {"colab.yml": {"contents"}, "site.yml": {"pages", "id-token"}}


def test_the_devcontainer_names_a_dockerfile_that_is_there():
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    settings = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    dockerfile = (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).read_text()
    for part in ("bubblewrap", "chromium", "g++", "git", "make"):
        assert part in dockerfile


def test_both_licences_are_there_in_full():
    text = (ROOT / "LICENSE").read_text()
    for words in ("END OF TERMS AND CONDITIONS", "Creative Commons Attribution 4.0 International Public License"):
        assert words in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0 AND CC-BY-4.0"


def test_no_file_names_a_machine_or_a_registry():
    hosts = ("pypi." + "org", "python" + "hosted.org", "npmjs" + ".org", "download.py" + "torch.org", "/tmp" + "/build")
    for path in project_files():
        if path.suffix not in (".png", ".json", ".ipynb"):
            text = path.read_text(encoding="utf-8", errors="replace")
            # The one address, in two places: PyTorch's public index of CPU wheels.
            if path in (ROOT / "scripts/make_venv.py", ROOT / "environment.yml"):
                text = text.replace("https://" + hosts[3] + "/whl/cpu", "", 1)
            for host in hosts:
                assert host not in text, f"{path.relative_to(ROOT)} names {host}"


@pytest.mark.parametrize("lab", all_labs(ROOT), ids=lambda lab: lab.slug)
def test_every_labs_source_keeps_the_rules(lab):
    assert lint(lab) == []


def test_the_readme_lists_every_lab():
    rows = re.findall(r"^\| (\d\d) (\w+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [f"{number}_{name}" for number, name in rows] == [lab.slug for lab in all_labs(ROOT)]


def test_a_part_that_is_missing_skips_a_test_and_fails_it_in_ci_unless_it_is_a_gpu(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a CUDA device\n")
    (tmp_path / "test_parts.py").write_text(
        "import pytest\n"
        "def test_sandbox(): pytest.skip('no bubblewrap')\n"
        "@pytest.mark.gpu\ndef test_kernel(): pytest.skip('no CUDA device')\n"
        "@pytest.mark.xfail\ndef test_known(): assert False\n"
    )
    (tmp_path / "test_browser.py").write_text("import pytest\npytest.importorskip('no_such_browser')\n")

    def outcome(**environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("THREELOOPS_CI", "PYTEST_"))}
        clean |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # half the time would go to them
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        return subprocess.run(command, env=clean | environment, cwd=tmp_path, capture_output=True, text=True).stdout

    assert "3 skipped, 1 xfailed" in outcome()
    strict = outcome(THREELOOPS_CI="1")
    assert "no part may be missing" in strict and "no bubblewrap" in strict and "no_such_browser" in strict
    assert "passed" not in strict and "error" in strict
