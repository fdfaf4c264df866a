"""Whatever takes a GPT, given every variant of architecture: what it computes, compared with the model's plain pass.

A consumer is a function of the variants' names that gives, for each, the largest difference or the error that refused
the variant. Those that train compare the losses of two steps of gradient descent, so a wrong gradient shows, too.
"""

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from llama_cpp import largest_difference, served
from model_variants import variant_model
from threeloops.models.llama_folder import load_llama_folder, save_llama_folder
from threeloops.product.decode import PagedCache, Rows, export_decode, export_prefill
from threeloops.product.quantized import Calibration, QuantizedLinear, Scheme, fold_scales, quantize
from threeloops.product.quantized.gguf import export_gguf, load_gguf
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.cluster import Cluster
from threeloops.training.context_parallel import context_parallelize, token_positions
from threeloops.training.pipeline import gpt_stages, one_f_one_b, run_schedule
from threeloops.training.sharded import FSDP
from threeloops.training.tensor_parallel import gpt_plan, parallelize

__all__ = ["CONSUMERS", "Consumer"]

Found = dict[str, float | str]
"""By variant: the largest difference, or the error."""

_VOCABULARY, _LENGTH, _RATE, _STEPS = 61, 24, 0.3, 2
_SECONDS = 300  # for a run of all variants on a busy machine; it takes ten


@dataclass(frozen=True)
class Consumer:
    """A column of the table: its heading, what it does with a model, and how far it may be from the plain pass."""

    title: str
    what: str
    within: float
    check: Callable[[tuple[str, ...]], Found]


CONSUMERS: dict[str, Consumer] = {}
"""By name, in the order of the table."""


def _consumer(title: str, within: float) -> Callable:
    def register(function: Callable) -> Callable:
        what = (function.__doc__ or "").split("\n\n")[0].replace("\n    ", " ")
        check = functools.cache(function)
        CONSUMERS[function.__name__.strip("_")] = Consumer(title, what, within, check)
        return check

    return register


def _one_by_one(title: str, within: float, layers: int = 2) -> Callable:
    """For a consumer of one model, which gives what it found and what was expected. The slow ones get one layer."""

    def register(function: Callable) -> Callable:
        @functools.wraps(function)
        def check(names: tuple[str, ...]) -> Found:
            return {
                name: _or_error(lambda name=name: _difference(*function(variant_model(name, layers=layers))))
                for name in names
            }

        return _consumer(title, within)(check)

    return register


def _or_error(compute: Callable[[], float]) -> float | str:
    try:
        with torch.no_grad():
            return compute()
    except ValueError as error:
        return str(error)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).abs().max())


def _tokens(count: int = 2) -> torch.Tensor:
    return torch.randint(_VOCABULARY, (count, _LENGTH), generator=torch.Generator().manual_seed(1))


# Serving


@_one_by_one("paged decode", 1e-5)
def _paged_decode(model):
    """Compute prompts in chunks and then token by token with the paged cache, and compare the logits."""
    cache = PagedCache(model.config, 12, 4, dtype=torch.float32, device="cpu")
    tables, parts = ([7, 0, 3, 9, 1, 11], [2, 10, 4, 8, 5, 6]), []
    for start, end in ((0, 9), (9, 10), (10, 11), (11, 20), (20, 21), (21, _LENGTH)):
        rows = [Rows(row[start:end].tolist(), start, table) for row, table in zip(_tokens(), tables, strict=True)]
        parts.append(model.head(cache.hidden(model, rows)).view(2, end - start, -1))
    return torch.cat(parts, 1), model(_tokens())


@_one_by_one("export", 1e-5, layers=1)
def _export(model):
    """Run the programs that `torch.export` made of prefill and decode, and compare the logits."""
    prefill, decode = export_prefill(model).module(), export_decode(model).module()
    first, keys, values = prefill(_tokens()[:, :-1])
    last, _, _ = decode(_tokens()[:, -1:], keys, values)
    return torch.stack([first, last], 1), model(_tokens())[:, -2:]


# Training on several ranks


def _train(loss_of, parameters, rounds=_STEPS) -> list[float]:
    """Losses of some steps of gradient descent; `loss_of()` has run backward."""
    losses = []
    for _ in range(rounds):
        for parameter in parameters:
            parameter.grad = None
        losses.append(loss_of())
        with torch.no_grad():
            for parameter in parameters:
                parameter -= _RATE * parameter.grad
    return losses


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return _tokens()[:, :-2], _tokens()[:, 1:-1]


def _backward(loss: torch.Tensor) -> float:
    loss.backward()
    return loss.item()


@functools.cache
def _alone(name: str, layers: int) -> list[float]:
    model = variant_model(name, dtype=torch.float64, layers=layers)
    return _train(lambda: _backward(model(*_batch())), list(model.parameters()))


def _on_ranks(names: tuple[str, ...], losses_of: Callable[..., list[float]], layers: int = 2, times: int = 1) -> Found:
    """One run of two ranks for all variants. `losses_of(model)` gives the losses, on the last rank."""

    def program() -> dict[str, list[float] | str]:
        found: dict[str, list[float] | str] = {}
        for name in names:
            try:
                found[name] = losses_of(variant_model(name, dtype=torch.float64, layers=layers))
            except ValueError as error:
                found[name] = str(error)
        return found

    found = Cluster(2).run(program, seconds=_SECONDS).results[-1]
    return {
        name: each if isinstance(each, str) else _difference(_numbers(each), _numbers(_alone(name, layers) * times))
        for name, each in found.items()
    }


def _numbers(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _tensor_parallel_losses(whole) -> list[float]:
    losses = []
    for sequence_parallel in (False, True):
        model = copy.deepcopy(whole)
        parallelize(model, gpt_plan(sequence_parallel=sequence_parallel))
        losses += _train(lambda model=model: _backward(model(*_batch())), list(model.parameters()))
    return losses


@_consumer("tensor parallel", 1e-12)
def _tensor_parallel(names):
    """Train on 2 ranks with tensor parallelism, without and with sequence parallelism, and compare losses."""
    return _on_ranks(names, _tensor_parallel_losses, layers=1, times=2)


def _pipeline_losses(model) -> list[float]:
    stage = gpt_stages(model, 2)[dist.get_rank()]
    schedule = one_f_one_b(2, 2)
    inputs, targets = (part.chunk(2) for part in _batch())
    stream = torch.empty(1, inputs[0].shape[1], model.config.width, dtype=torch.float64)

    def loss() -> float:
        done = run_schedule(schedule, {dist.get_rank(): stage}, inputs, targets, stage.loss, stream)
        return 0.0 if done.loss is None else done.loss.item()

    return _train(loss, list(stage.parameters()))


@_consumer("pipeline", 1e-12)
def _pipeline(names):
    """Train in 2 pipeline stages with the 1F1B schedule, and compare losses."""
    return _on_ranks(names, _pipeline_losses)


def _fsdp_losses(model) -> list[float]:
    fsdp = FSDP(model, model.blocks)
    own = slice(dist.get_rank(), dist.get_rank() + 1)  # a row of the batch each, so that gradients must be averaged
    tokens, targets = (part[own] for part in _batch())

    def loss() -> float:
        mean = torch.tensor(_backward(fsdp(tokens, targets)) / dist.get_world_size(), dtype=torch.float64)
        dist.all_reduce(mean)
        return mean.item()

    return _train(loss, list(fsdp.parameters()))


@_consumer("FSDP", 1e-12)
def _fsdp(names):
    """Train with FSDP on 2 ranks, and compare losses."""
    return _on_ranks(names, _fsdp_losses)


def _ring_losses(model) -> list[float]:
    context_parallelize(model, order="contiguous")
    parameters = list(model.parameters())
    tokens, targets = _batch()
    own = token_positions(tokens.shape[1], dist.get_rank(), 2, "contiguous")

    def loss() -> float:
        found = model(tokens[:, own], targets[:, own])
        found.backward()
        for each in [mean := found.detach() / 2, *(parameter.grad for parameter in parameters)]:
            dist.all_reduce(each)
        for parameter in parameters:
            parameter.grad /= 2
        return mean.item()

    return _train(loss, parameters)


@_consumer("ring attention", 1e-12)
def _ring_attention(names):
    """Train with every sequence split over 2 ranks, and compare losses."""
    return _on_ranks(names, _ring_losses, layers=1)


def _save_with_fsdp(names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        model = variant_model(name)
        state = TrainingState(FSDP(model, model.blocks))
        Checkpointer(LocalStore(folder / "fsdp" / name)).save(1, state.state())


def _save_cut_in_another_way(names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        model = variant_model(name, seed=1)
        try:
            parallelize(model, gpt_plan())
        except ValueError:
            model = gpt_stages(model, 2)[dist.get_rank()]
        state = TrainingState(model)
        state.restore(Checkpointer(LocalStore(folder / "fsdp" / name)).load(state.template))
        Checkpointer(LocalStore(folder / "cut" / name)).save(1, state.state())


@_consumer("checkpoint", 0)
def _checkpoint(names):
    """Save under FSDP, reshard to tensor parallelism or pipeline stages, load on one rank, and compare the weights."""
    found: Found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Cluster(2).run(_save_with_fsdp, names, folder, seconds=_SECONDS)
        Cluster(2).run(_save_cut_in_another_way, names, folder, seconds=_SECONDS)
        for name in names:
            model, whole = variant_model(name, seed=2), variant_model(name).state_dict()
            state = TrainingState(model)
            state.restore(Checkpointer(LocalStore(folder / "cut" / name)).load(state.template))
            found[name] = max(_difference(value, whole[key]) for key, value in model.state_dict().items())
    return found


# Fewer bits


def _as_linear_layers(small, model):
    """`model` with the weights that the codes of `small` stand for: its biases and norms are its own."""
    made = copy.deepcopy(model)
    for name, layer in small.named_modules():
        if isinstance(layer, QuantizedLinear):
            made.get_submodule(name).weight.copy_(layer.weight)
    return made


def _calibration() -> torch.Tensor:
    return torch.randint(_VOCABULARY, (4, 32), generator=torch.Generator().manual_seed(2))


@_one_by_one("int8 and int4", 1e-5)
def _rounding(model):
    """Round to 8 and to 4 bits, and compare the logits with those of the rounded weights in plain layers."""
    smalls = [quantize(model, "rtn", Scheme(bits=bits, group=32)) for bits in (8, 4)]
    pairs = [(small(_tokens()), _as_linear_layers(small, model)(_tokens())) for small in smalls]
    return torch.stack([found for found, _ in pairs]), torch.stack([expected for _, expected in pairs])


@_one_by_one("GPTQ", 1e-5, layers=1)
def _gptq(model):
    """Round to 4 bits with GPTQ, and compare the logits with those of the rounded weights in plain layers."""
    small = quantize(model, "gptq", Scheme(bits=4, group=32), calibration=_calibration())
    return small(_tokens()), _as_linear_layers(small, model)(_tokens())


@_one_by_one("AWQ", 1e-4, layers=1)
def _awq(model):
    """Scale the weights with AWQ, and compare the logits with the model's own. Then round to 4 bits, and compare as for
    GPTQ."""
    scheme, folded, layers = Scheme(bits=4, group=32), copy.deepcopy(model), list(_names_of_layers())
    through = Calibration(folded, _calibration())
    for block in folded.blocks:
        fold_scales(block, through.statistics(block, layers), scheme)
        through.advance(block)
    small = quantize(model, "awq", scheme, calibration=_calibration())
    plain = copy.deepcopy(small)
    for name, layer in list(small.named_modules()):
        if isinstance(layer, QuantizedLinear):
            parent, _, leaf = name.rpartition(".")
            linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            linear.load_state_dict({"weight": layer.weight, **({} if layer.bias is None else {"bias": layer.bias})})
            setattr(plain.get_submodule(parent), leaf, linear)
    found = torch.stack([folded(_tokens()), small(_tokens())])
    return found, torch.stack([model(_tokens()), plain(_tokens())])


def _names_of_layers() -> Iterator[str]:
    yield from ("attention.qkv", "attention.output", "mlp.gate", "mlp.up", "mlp.down")


# Files


def _through_a_file(write: Callable, read: Callable, model) -> tuple[torch.Tensor, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        write(model, Path(folder) / "model")
        return read(Path(folder) / "model")(_tokens()), model(_tokens())


@_one_by_one("folder", 0)
def _folder(model):
    """Save the model as a folder of safetensors, load it, and compare the logits."""
    return _through_a_file(save_llama_folder, load_llama_folder, model)


@_one_by_one("GGUF", 0)
def _gguf(model):
    """Write the model to a GGUF file in F32, load it, and compare the logits."""
    return _through_a_file(export_gguf, load_gguf, model)


@_consumer("llama.cpp", 1e-4)
def _llama_cpp(names):
    """Run that file in llama.cpp for three greedy tokens, and compare the log-probabilities of the whole vocabulary."""

    def difference(model) -> float:
        with tempfile.TemporaryDirectory() as folder:
            export_gguf(model, Path(folder) / "model.gguf")
            return largest_difference(served(Path(folder) / "model.gguf", 64), model, _tokens()[0].tolist())

    return {name: _or_error(lambda name=name: difference(variant_model(name))) for name in names}
