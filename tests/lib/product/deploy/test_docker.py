"""The Dockerfile, read as BuildKit reads it: no daemon is needed, and none is asked."""

import ast
import fnmatch
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from deployment import FILES, settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from threeloops import extra_of

ROOT = Path(__file__).parents[4]
INSTRUCTIONS = set("ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN STOPSIGNAL USER WORKDIR".split())
"""What ours may use. ADD would fetch or unpack what nobody has looked at."""


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (FILES / "docker/Dockerfile").read_text())
    whole = re.sub(r"\\\n\s*", " ", text)
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def named(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def sent_to_the_builder(path: str) -> bool:
    """As Dockerfile.dockerignore decides: the last line that matches the path, or a folder above it."""
    ignored = False
    for line in (FILES / "docker/Dockerfile.dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            anywhere = pattern.startswith("**/")
            names = [each.name if anywhere else str(each) for each in (Path(path), *Path(path).parents)]
            if any(name and fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names if name != "."):
                ignored = not line.startswith("!")
    return not ignored


def packages() -> list[Requirement]:
    """What the build's own command reads from pyproject.toml."""
    (command,) = (rest.partition(" > ")[0] for rest in named("RUN") if "> packages.txt" in rest)
    python = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=python, capture_output=True, text=True, check=True)
    return [Requirement(line) for line in done.stdout.splitlines()]


def test_every_instruction_is_one_that_builds_without_surprises():
    words = [word for word, _ in instructions()]
    assert set(words) <= INSTRUCTIONS and words[0] == "ARG" and words[1] == "FROM"
    stages = [re.fullmatch(r"python:\$\{PYTHON\}-slim AS (\w+)", rest)[1] for rest in named("FROM")]
    assert stages == ["build", "serve"], "two stages: the compiler and the sources stay in the first"


def test_it_runs_as_somebody_without_rights_whom_kubernetes_knows():
    pod = (FILES / "kubernetes/base/deployment.yaml").read_text()
    last = [word for word, _ in instructions()]
    (user,) = named("USER")
    uid, gid = map(int, user.split(":"))
    assert uid > 0 and gid > 0
    assert f"runAsUser: {uid}" in pod and f"runAsGroup: {gid}" in pod
    assert last.index("USER") < last.index("ENTRYPOINT") and "RUN" not in last[last.index("USER") :]


def test_what_is_copied_exists_and_is_sent_to_the_builder():
    sources = [word for rest in named("COPY") if "--from=" not in rest for word in rest.split()[:-1]]
    assert {"lib", "grader", "pyproject.toml"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists() and sent_to_the_builder(source), source


@pytest.mark.parametrize(
    "path",
    [".git/config", "gradebook.db", "work/notes.ipynb", ".venv/bin/python", "lib/__pycache__/a.pyc", "keys.toml"],
)
def test_nothing_else_is(path):
    assert not sent_to_the_builder(path)


def test_no_secret_is_given_to_the_build():
    for word in ("ARG", "ENV"):
        assert not re.search(r"(?i)(key|token|password|secret)\w*=", " ".join(named(word)))


def test_the_server_is_the_process_that_gets_the_signal():
    (start,), (arguments,) = named("ENTRYPOINT"), named("CMD")
    assert json.loads(start) == ["threeloops", "serve"], "a shell in between would keep SIGTERM to itself"
    assert named("STOPSIGNAL") == ["SIGTERM"]
    copied = {rest.split()[-1] for rest in named("COPY")}
    assert json.loads(arguments)[0] == "--config" and json.loads(arguments)[1] in copied
    assert named("EXPOSE") == [str(settings()["port"])]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_tells_a_live_server_from_a_dead_one(status, healthy):
    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    (check,) = named("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    port = server.server_port
    if status is None:
        server.server_close()
    else:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        environment = {"THREELOOPS_SERVE_PORT": str(port)}
        done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, timeout=30)
    finally:
        if status is not None:
            server.shutdown()
            server.server_close()
    assert command[0] == "python" and (done.returncode == 0) == healthy


def test_every_package_of_the_image_is_pinned():
    pinned = {
        canonicalize_name(Requirement(line.partition("#")[0]).name)
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line.partition("#")[0].strip()
    }
    assert {canonicalize_name(requirement.name) for requirement in packages()} <= pinned


def test_the_image_has_what_the_service_imports():
    """All that is reached from the service, its engine and its models, imports inside functions too. Pictures are left
    out: the models' shapes are drawn and costed in the same modules, and the service draws nothing."""
    found = modules()
    roots = [f"threeloops.product.{name}" for name in ("service", "batching", "decode", "trained")]
    todo = {name for name in found if name.startswith((*roots, "threeloops.models"))}
    seen, foreign = set(), {}
    while todo:
        seen.add(module := todo.pop())
        for name in imported(found[module]):
            if name in found:
                todo |= {name} - seen
            elif (top := name.partition(".")[0]) not in {*sys.stdlib_module_names, "threeloops"}:
                foreign.setdefault(top, module)
    of_modules = metadata.packages_distributions()
    installed = {canonicalize_name(requirement.name) for requirement in packages()}
    for name, module in foreign.items():
        if extra_of(name) == "pictures":
            continue
        brought_by = {canonicalize_name(each) for each in of_modules.get(name, [name])}
        assert brought_by & with_what_they_need(installed), f"{module} imports {name}: add it to pyproject.toml"


def with_what_they_need(names: set[str]) -> set[str]:
    """Read from the installed packages, without extras."""
    found, todo = set(), set(names)
    while todo:
        found.add(name := todo.pop())
        try:
            needs = [Requirement(text) for text in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        ours = (need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""}))
        todo |= {canonicalize_name(need.name) for need in ours} - found
    return found


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "lib/threeloops").rglob("*.py"):
        parts = path.relative_to(ROOT / "lib").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
