"""A GPT cut into pipeline stages."""

from itertools import pairwise

from torch import Tensor, nn

from threeloops.models.gpt import GPT

__all__ = ["GPTStage", "gpt_stages"]


class GPTStage(nn.Module):
    """Some blocks of a GPT; the first stage also has its embedding, the last its norm and head. Parameters have the
    model's own names, and are the model's own."""

    def __init__(self, model: GPT, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.rotation = model.rotation
        self.blocks = nn.ModuleDict({str(layer): model.blocks[layer] for layer in layers})
        if first:
            self.embedding = model.embedding
        if last:
            self.norm = model.norm
            self.head = model.head
        self._first = first
        self._last = last
        self._loss = model.loss
        self._tied = model.config.tied_embeddings and first != last

    def forward(self, x: Tensor) -> Tensor:
        """Compute the residual stream (batch, tokens, width) from tokens (batch, tokens) in the first stage, or from
        the residual stream in the others. The last stage returns its norm, which `loss` takes."""
        x = self.embedding(x) if self._first else x
        rotation = self.rotation(0, x.shape[1])
        for block in self.blocks.values():
            x = block(x, rotation)
        return self.norm(x) if self._last else x

    @property
    def tied_weight(self) -> nn.Parameter | None:
        """The weight that is also the other end's, if embedding and head are tied and lie in different stages."""
        if not self._tied:
            return None
        return self.embedding.weight if self._first else self.head.weight

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats, on the last stage."""
        return self._loss(hidden, self.head, targets)


def gpt_stages(model: GPT, stages: int) -> list[GPTStage]:
    """Cut a model into stages whose numbers of layers differ by at most one. With more stages than layers, some pass on
    their input.

    Give each rank its own stages of a model that is the same on all. A tied embedding that lies on two ranks stays tied
    if both copies are updated in the same way: `run_schedule` sums their gradients.
    """
    if stages < 1:
        raise ValueError(f"stages = {stages}: expected 1 or more")
    layers = len(model.blocks)
    cuts = [layers * stage // stages for stage in range(stages + 1)]
    return [
        GPTStage(model, range(start, end), first=stage == 0, last=stage == stages - 1)
        for stage, (start, end) in enumerate(pairwise(cuts))
    ]
