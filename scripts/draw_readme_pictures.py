"""Draw the README's three charts and its badges from `benchmarks/evidence/`: `python scripts/draw_readme_pictures.py`.

Each chart is an SVG of horizontal bars that follows the colours of the page, light or dark. The README quotes its
sentence, and `tests/test_readme_pictures.py` checks both against the evidence.
"""

import json
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE, IMAGES = ROOT / "benchmarks/evidence", ROOT / ".github/images"
WIDTH, ROW, TOP, NAMES, VALUES = 280, 28, 32, 122, 74
"""Pixels: of a chart, of one of its rows, above the first row, and for names and values beside the bars."""
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 }
  .ours { fill: #0072b2 } .peer { fill: #8b949e }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #56b4e9 } }
"""


@dataclass(frozen=True)
class Bar:
    """One bar: `shown` is the value as people read it, `length` what the bar's length is proportional to."""

    name: str
    length: float
    shown: str
    ours: bool = False


@dataclass(frozen=True)
class Chart:
    """`sentence` is the number that the README quotes beside the picture."""

    title: str
    bars: tuple[Bar, ...]
    sentence: str

    def svg(self) -> str:
        longest = max(bar.length for bar in self.bars)
        room = WIDTH - NAMES - VALUES
        rows = []
        for number, bar in enumerate(self.bars):
            y = TOP + ROW * number
            width = room * bar.length / longest
            kind = "ours" if bar.ours else "peer"
            rows += [
                f'<text x="{NAMES - 8}" y="{y + 16}" text-anchor="end">{escape(bar.name)}</text>',
                f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{max(width, 2):.1f}" height="22" rx="2"/>',
                f'<text x="{NAMES + max(width, 2) + 6:.1f}" y="{y + 16}">{escape(bar.shown)}</text>',
            ]
        height = TOP + ROW * len(self.bars)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
                f"<title>{escape(self.sentence)}</title>",
                f"<style>{STYLE}</style>",
                f'<text class="title" x="0" y="16">{escape(self.title)}</text>',
                *rows,
                "</svg>\n",
            ]
        )


def evidence(device: str, name: str) -> dict:
    return json.loads((EVIDENCE / device / f"{name}.json").read_text(encoding="utf-8"))


def medians(found: dict, what: str) -> dict[str, float]:
    """The median of each party's samples of one quantity."""
    return {row["by"]: median(row["samples"]) for row in found["series"] if row["what"] == what}


def inner_loop() -> Chart:
    found = evidence("nvidia-h200", "attention_backward")
    shape = "1 × 16 heads × 16,384 tokens × 128, causal"
    rates = {row["by"]: row["forward_flops_per_second"] for row in found["facts"]["rates"] if row["shape"] == shape}
    ours, flash, cudnn = (rates[by] for by in ("threeloops", "FlashAttention-2 in torch", "cuDNN in torch"))
    bars = (("ours, in Triton", ours), ("FlashAttention-2", flash), ("cuDNN", cudnn))
    return Chart(
        "Attention on an H200, TFLOP/s",
        tuple(Bar(name, rate, f"{rate / 1e12:.0f}", rate is ours) for name, rate in bars),
        f"The course's FlashAttention in Triton reaches {ours / 1e12:.0f} TFLOP/s on an H200 (16,384 tokens, "
        f"causal): {ours / flash:.1f} times FlashAttention-2, {100 * ours / cudnn:.0f}% of cuDNN (GPU).",
    )


def training_loop() -> Chart:
    found = evidence("cpu-amd-epyc-2-cores", "checkpoint")
    lost, states = (medians(found, f"crash states under POSIX rules: {what}") for what in ("both lost", "states"))
    names = {"threeloops, incremental": "ours", "torch.save in place": "torch.save", "torch DCP in place": "torch DCP"}
    bars = [
        Bar(name, lost[by] / states[by], f"{lost[by]:.0f} of {states[by]:.0f}", name == "ours")
        for by, name in names.items()
    ]
    if lost["threeloops, incremental"]:
        raise ValueError("our save loses both checkpoints in some states: the README's sentence no longer holds")
    return Chart(
        "Power cut: both checkpoints are lost",
        tuple(bars),
        f"Whatever a power cut during a save leaves on disk ({states['threeloops, incremental']:.0f} possible states), "
        "a checkpoint loads. If you overwrite the file with torch.save instead, "
        f"{lost['torch.save in place']:.0f} of {states['torch.save in place']:.0f} possible states leave neither the "
        "old nor the new checkpoint (model).",
    )


def product_loop() -> Chart:
    found = evidence("cpu-amd-epyc-2-cores", "serving")
    gap = medians(found, "P99 inter-token latency, long prompts among chats")
    wait = medians(found, "P99 time to first token, long prompts among chats")
    chunked, whole = "threeloops", "threeloops, whole prompts"
    return Chart(
        "P99 inter-token latency",
        tuple(
            Bar(name, gap[by], f"{1e3 * gap[by]:.0f} ms", by == chunked)
            for by, name in ((chunked, "chunked prefill"), (whole, "whole prompts"))
        ),
        f"When long prompts arrive, chunked prefill cuts the P99 inter-token latency from {1e3 * gap[whole]:.0f} to "
        f"{1e3 * gap[chunked]:.0f} ms. The price: the P99 time to first token is {wait[chunked] / wait[whole]:.1f} "
        "times as long (CPU).",
    )


CHARTS = {"inner_loop": inner_loop, "training_loop": training_loop, "product_loop": product_loop}


def badge(name: str, value: str) -> str:
    """A flat badge of two fields."""
    left, right = (7 * len(text) + 14 for text in (name, value))
    font = 'font-family="Verdana, sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">\n'
        f"<title>{escape(name)}: {escape(value)}</title>\n"
        f'<rect width="{left + right}" height="20" rx="3" fill="#0072b2"/>\n'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444c56"/>\n'
        f'<text x="{left / 2}" y="14" {font}>{escape(name)}</text>\n'
        f'<text x="{left + right / 2}" y="14" {font}>{escape(value)}</text>\n</svg>\n'
    )


def badges() -> dict[str, str]:
    """Python's versions and the licence as pyproject.toml has them. They are files: no page has to ask another host."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first, end = project["requires-python"].replace(">=", "").split(",<3.")
    return {
        "badge_python": badge("Python", f"{first}–3.{int(end) - 1}"),
        "badge_licence": badge("licence", "Apache-2.0, CC BY 4.0"),
        "badge_colab": badge("open in", "Colab"),
    }


def pictures() -> dict[str, str]:
    """The text of every file, by its name."""
    drawn = {name: chart().svg() for name, chart in CHARTS.items()} | badges()
    return {f"{name}.svg": text for name, text in drawn.items()}


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    for chart in CHARTS.values():
        print(chart().sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
