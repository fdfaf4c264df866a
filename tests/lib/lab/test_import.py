"""What importing the kit costs, and what it does in a shell without a kernel."""

import json
import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_kit_imports_nothing_heavy_and_nothing_that_holds_answers():
    loaded = json.loads(run("import sys, json, threeloops.lab; print(json.dumps(sorted(sys.modules)))"))
    for heavy in ("torch", "matplotlib", "ipywidgets", "IPython", "triton", "pandas", "scipy", "threeloops_grader"):
        assert heavy not in loaded
    ours = {name.split(".")[1] for name in loaded if name.startswith("threeloops.")}
    assert ours == {"lab"}


def test_plain_python_checks_predicts_hints_and_audits_without_any_of_them():
    out = run(
        "import sys\n"
        "from threeloops.lab import audit, by_value, check, hint, inout, predict, progress, show\n"
        "with check('a', 'a title'):\n"
        "    check.close([1.0, 2.0], [1.0, 2.0]); check.equal(inout(3), 3)\n"
        "hint('a', 'one'); predict('k', question='how?', guess=3); show.table([[1]], ['n'])\n"
        "audit('roof-2', 0.99, 'PFLOP/s', 'published', 'corrected', how='the data sheet')\n"
        "list(progress(range(3), 'steps'))\n"
        "assert not {'torch', 'matplotlib', 'ipywidgets', 'IPython'} & set(sys.modules)\n"
    )
    assert out.startswith("✓ a title (2 checks)\n") and "<div" not in out


def test_a_shell_without_a_kernel_shows_the_picture_and_no_widget():
    out = run(
        "import json\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "from IPython.core.displaypub import CapturingDisplayPublisher\n"
        "InteractiveShell.display_pub_class = CapturingDisplayPublisher\n"
        "shell = InteractiveShell.instance()\n"
        "result = shell.run_cell('''\n"
        "from threeloops.lab import check, explore, figure, hint\n"
        "with check('a', 'a title'):\n"
        "    check.true(True, '')\n"
        "hint('a', 'one')\n"
        "explorer = explore(lambda n: figure()[0], n=(1, 3, 1, 2))\n"
        "''')\n"
        "assert result.success\n"
        "print(json.dumps([sorted(o['data']) for o in shell.display_pub.outputs]))"
    )
    assert json.loads(out.split("\n")[-2]) == [
        ["text/html", "text/plain"],
        ["text/html", "text/plain"],
        ["image/png", "text/html", "text/plain"],
    ]
