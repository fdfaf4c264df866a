"""Limit how much of a submission's output is kept, because every page and file that shows the output contains all of
it."""

from dataclasses import dataclass, field, replace

from threeloops_grader.wall.outcome import Outcome

__all__ = ["Allowance"]

_MAX_PICTURES = 4 << 20
"""Bytes of all pictures of one submission, in base64."""
_MAX_TEXT = 500_000
"""Characters that one submission prints and displays."""
_MAX_DISPLAYS = 300

_TEXT = f"the notebook printed more than the {_MAX_TEXT:,} characters that are kept: print less and submit again"
_DISPLAYS = f"the notebook displayed more than the {_MAX_DISPLAYS} things that are kept: display fewer and submit again"
_PICTURES = (
    f"the notebook drew more than the {_MAX_PICTURES / (1 << 20):g} MB of pictures that are kept: "
    "draw fewer or smaller ones and submit again"
)


@dataclass
class Allowance:
    """The amount of output that may still be kept. Cells use it up in the order in which they run. `notes` say what ran
    out."""

    pictures: int = _MAX_PICTURES
    text: int = _MAX_TEXT
    displays: int = _MAX_DISPLAYS
    notes: list[str] = field(default_factory=list)

    def spend(self, outcome: Outcome) -> Outcome:
        """Return the outcome with as much of the student's output as is still allowed. The rest becomes a note."""
        allowed = outcome.shown[: self.displays]
        self.displays -= len(allowed)
        shown = [self._display(output) for output in allowed]
        if len(allowed) < len(outcome.shown):
            shown.append({"text/plain": self._say(_DISPLAYS)})
        return replace(outcome, student_printed=self._print(outcome.student_printed), shown=shown)

    def _print(self, text: str) -> str:
        allowed = text[: self.text]
        self.text -= len(allowed)
        return text if allowed == text else f"{allowed}\n{self._say(_TEXT)}\n"

    def _display(self, output: dict[str, str]) -> dict[str, str]:
        picture = len(output.get("image/png", ""))
        if picture > self.pictures:
            return {"text/plain": self._say(_PICTURES)}
        self.pictures -= picture
        return output | {"text/plain": self._print(output["text/plain"])} if "text/plain" in output else output

    def _say(self, note: str) -> str:
        if note not in self.notes:
            self.notes.append(note)
        return f"[{note}]"
