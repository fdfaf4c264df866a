# Replaces the run by one that does nothing.


def _init(self, seed, random_parts=True):
    self.model = nn.Linear(1, 1)
    for each in self.model.parameters():
        each.data.zero_()

Run.__init__ = _init
Run.step = lambda self: {"samples": [0], "drawn": [0.0, 1], "loss": 0.0}

def capture(run) -> dict:
    return {}


def restore(run, saved: dict) -> None:
    pass
