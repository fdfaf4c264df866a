"""The opening picture: drawn by the lab's own cell, attached to the title, drawn again only when that changes."""

import base64
import io
import os
import shutil

import nbformat
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.patches import Rectangle
from PIL import Image
from threeloops.figures import figure, palette
from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.pages import any_page
from threeloops_grader.release import opening
from threeloops_grader.release.release import release, stale
from threeloops_grader.release.student_copies import start, update
from toy_course import SOURCE, make_course, read

CELL = """\
# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab import figure, show

plot, axes = figure(width=4, height=2)
axes.bar(range(len(SAMPLES)), SAMPLES)
show.figure(plot, "three bars")

"""
OPENED = SOURCE.replace("one scale?\n", "one scale?\n#\n# ![three bars](attachment:opening.png)\n").replace(
    '# %% tags=["demo"]\npredict', CELL + '# %% tags=["demo"]\npredict'
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Released once: to draw the picture, a process imports the course's figures."""
    lab = make_course(tmp_path_factory.mktemp("drawn"), OPENED)
    release([lab])
    return lab


@pytest.fixture
def opened(drawn, tmp_path):
    """A copy of the released lab, of the test's own."""
    shutil.copytree(drawn.root, tmp_path, dirs_exist_ok=True)
    return Lab(drawn.slug, tmp_path)


def picture_of(path):
    return read(path).cells[0].get("attachments", {}).get("opening.png", {}).get("image/png")


def test_an_untouched_notebook_shows_the_picture_and_not_the_code_that_drew_it(opened):
    drawn = base64.b64decode(picture_of(opened.released))
    assert drawn == opened.opening.read_bytes() and len(drawn) < 80_000
    with Image.open(io.BytesIO(drawn)) as picture:
        width, height = picture.size
        assert width > height > 100 and len(picture.convert("RGBA").getcolors(1 << 20)) > 2
        assert picture.convert("RGBA").getpixel((0, 0))[3] == 0, "a white background glares on a dark page"
    released = read(opened.released)
    nbformat.validate(released)
    assert not any("three bars" in cell.source for cell in released.cells if cell.cell_type == "code")
    assert {p.name for p in opened.released.parent.iterdir()} == {"90_toy.ipynb", "data"}
    assert stale([opened]) == []


def luminance(colour):
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_text_of_the_picture_stands_out_on_light_and_dark_pages():
    plot, axes = figure(width=4, height=2)
    axes.add_patch(Rectangle((0, 0), 0.5, 0.5, facecolor=palette.sky, alpha=0.3))
    axes.add_patch(Rectangle((0.5, 0.5), 0.5, 0.5, facecolor="white", edgecolor=palette.ink))
    inside = axes.text(0.25, 0.25, "in a box", ha="center", va="center")
    empty = axes.text(0.75, 0.75, "in an empty box", ha="center", va="center")
    title = axes.set_title("a title")
    any_page.png(plot)
    box, frame = axes.patches
    assert box.get_facecolor()[3] == 1 and contrast(inside.get_color(), box.get_facecolor()) > 4.5
    assert frame.get_facecolor()[3] == 0
    for text in (title, empty, *axes.get_xticklabels(), axes.xaxis.label):
        assert min(contrast(text.get_color(), page) for page in ("white", "#111111")) > 4.2
    assert axes.get_xgridlines()[0].get_alpha() is None and to_rgba(axes.get_xgridlines()[0].get_color())[3] < 0.3


def test_it_is_drawn_again_only_when_its_cell_changes(opened):
    drawn = opened.opening.read_bytes()
    os.utime(opened.opening, ns=(1, 1))
    opened.source.write_text(OPENED.replace("Add them up.", "Sum them."))
    release([opened])
    assert opened.opening.stat().st_mtime_ns == 1
    opened.source.write_text(OPENED.replace("axes.bar(", "axes.barh("))
    assert stale([opened])[-1] == "solutions/90_toy/opening.png is not what the cell tagged 'opening' draws"
    release([opened])
    assert opened.opening.read_bytes() != drawn and stale([opened]) == []


def test_a_copy_gets_the_new_picture_and_a_student_s_own_title_stays(opened):
    start(opened)
    before = picture_of(opened.work)
    opened.source.write_text(OPENED.replace("axes.bar(", "axes.barh("))
    release([opened])
    assert update(opened).backup is not None
    assert picture_of(opened.work) == picture_of(opened.released) != before
    notebook = read(opened.work)
    notebook.cells[0].source += "\n\nmy notes"
    nbformat.write(notebook, opened.work)
    opened.source.write_text(OPENED)
    release([opened])
    update(opened)
    assert read(opened.work).cells[0].source.endswith("my notes")


def test_without_the_cell_the_picture_goes(opened):
    opened.source.write_text(SOURCE)
    assert not opening.is_current(opened)
    release([opened])
    assert not opened.opening.exists() and picture_of(opened.released) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('show.figure(plot, "three bars")', "pass", "it showed no figure"),
        ("SAMPLES)), SAMPLES", "SAMPLES)), SAMPLES[9]", "list index out of range"),
        (
            "axes.bar(range(len(SAMPLES)), SAMPLES)",
            "plot.set_size_inches(4, 4); axes.imshow(np.random.default_rng(0).random((400, 400)), cmap='prism')",
            "bytes, expected at most 80,000",
        ),
    ],
)
def test_a_picture_that_cannot_be_drawn_says_why_and_leaves_the_release_as_it_was(opened, old, new, message):
    before = opened.released.read_bytes()
    opened.source.write_text(OPENED.replace(old, new))
    with pytest.raises(LabError, match=message):
        release([opened])
    assert opened.released.read_bytes() == before
