"""Other engines as peers: llama.cpp, ctranslate2 and transformers, with the weights of one model, on so many threads.

Each engine, ours too, runs in a process of its own. In one process they would disturb each other: once ctranslate2 is
loaded there, PyTorch's two threads give fewer than half of their tokens per second. A party takes prompts of equal
length, all at once, and gives back the new tokens of each, greedily and without an end token. llama.cpp runs as its
server does, with a slot for each prompt, called within its process.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.batching import Engine, Policy
from threeloops.product.decode import BlockManager, ModelRunner
from threeloops.product.quantized.gguf import export_gguf
from threeloops.product.request import Request, Sampling
from threeloops.resident import use_huge_pages

from benchmarks.peer_packages import why_absent
from benchmarks.result import Unmeasured
from benchmarks.serving_transformers import STATIC, Transformers

__all__ = ["CTRANSLATE2", "LLAMA_CPP", "OURS", "TRANSFORMERS", "Party", "clock_of", "new_engine", "peers"]

OURS, LLAMA_CPP, CTRANSLATE2 = "threeloops", "llama.cpp", "ctranslate2"
TRANSFORMERS = STATIC
_PACKAGES = {LLAMA_CPP: "xllamacpp", CTRANSLATE2: "ctranslate2", TRANSFORMERS: "transformers"}
_BLOCK = 16
_LONGEST = 300.0
"""Seconds that a party may take to load, or to answer."""

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]
"""Prompts and how many tokens each gets; the new tokens of each."""


class Party:
    """An engine in a process of its own. Raises Unmeasured, with its reason, if it cannot load or answer."""

    def __init__(self, name: str, weights: Path, config: GPTConfig, threads: int, batch: int):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = theirs, name, weights, config, threads, batch
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer()
        except Unmeasured:
            self.close()
            raise

    def generate(self, prompts: Prompts, count: int) -> tuple[list[list[int]], float]:
        """Return the new tokens of each prompt, and the seconds of the call by the clock of `clock_of`."""
        self._connection.send(([list(prompt) for prompt in prompts], count))
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self) -> tuple[list[list[int]], float]:
        if not self._connection.poll(_LONGEST):
            self._process.kill()
            raise Unmeasured(f"it gave no answer within {_LONGEST:.0f} s")
        try:
            answer: str | tuple[list[list[int]], float] = self._connection.recv()
        except EOFError:
            self._process.join(5)
            raise Unmeasured(f"its process ended with exit status {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise Unmeasured(answer)
        return answer


@contextmanager
def peers(model: GPT, threads: int, batch: int) -> Iterator[tuple[dict[str, Party], list[str]]]:
    """Start every engine that is installed, ours first, for `batch` prompts at once. Also gives a sentence per missing
    one.
    """
    parties: dict[str, Party] = {}
    missing = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        weights = Path(folder) / "weights.pt"
        torch.save(model.state_dict(), weights)
        for name in _ENGINES:
            if name != OURS and (absent := why_absent(_PACKAGES[name])):
                missing.append(f"{name}: {absent}")
                continue
            try:
                parties[name] = Party(name, weights, model.config, threads, batch)
            except Unmeasured as error:
                missing.append(f"{name}: {error}")
                continue
            opened.callback(parties[name].close)
        yield parties, missing


def clock_of(threads: int) -> Callable[[], float]:
    """CPU seconds of one thread, which a busy machine changes little; with more, whoever waits for another spins."""
    return time.process_time if threads == 1 else time.perf_counter


def _serve(connection: Connection, name: str, weights: Path, config: GPTConfig, threads: int, batch: int) -> None:
    """Load an engine, and answer until the other end hangs up."""
    torch.set_num_threads(threads)
    clock = clock_of(threads)
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = GPT(config).eval().requires_grad_(False)
            model.load_state_dict(torch.load(weights))
            generate = _ENGINES[name](model, threads, batch, Path(folder))
            connection.send(([], 0.0))
            is_settled = False
            while True:
                prompts, count = connection.recv()
                started = clock()
                tokens = generate(prompts, count)
                seconds = clock() - started
                if not is_settled:
                    use_huge_pages()  # as the course's service does, for all parties
                    is_settled = True
                connection.send((tokens, seconds))
        except EOFError:
            return
        except Exception as error:
            connection.send(str(error) if isinstance(error, Unmeasured) else f"{type(error).__name__}: {error}")


def new_engine(model: GPT, batch: int) -> Engine:
    """Ours, with room for `batch` prompts of the model's longest sequence."""
    blocks = batch * -(-model.config.max_sequence // _BLOCK)
    policy = Policy(max_running=batch, token_budget=8192, prefix_cache=False)
    return Engine(ModelRunner(model, blocks, _BLOCK), BlockManager(blocks, _BLOCK), policy)


def _ours(model: GPT, threads: int, batch: int, folder: Path) -> Generate:
    engine = new_engine(model, batch)

    def generate(prompts: Prompts, count: int) -> list[list[int]]:
        requests = [Request(str(n), tuple(prompt), Sampling(max_tokens=count)) for n, prompt in enumerate(prompts)]
        engine.run(requests)
        return [request.output for request in requests]

    return generate


def _transformers(model: GPT, threads: int, batch: int, folder: Path) -> Generate:
    """A static batch, the fastest that it has for equal lengths. It computes on PyTorch's threads."""
    theirs = Transformers(model).model

    @torch.inference_mode()
    def generate(prompts: Prompts, count: int) -> list[list[int]]:
        tokens = torch.tensor(prompts)
        made = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        return made[:, tokens.shape[1] :].tolist()

    return generate


def _ctranslate2(model: GPT, threads: int, batch: int, folder: Path) -> Generate:
    import ctranslate2

    converted = folder / "ctranslate2"
    if not converted.exists():
        ctranslate2.converters.TransformersConverter(str(_folder(model, folder))).convert(str(converted))
    generator = ctranslate2.Generator(
        str(converted), device="cpu", inter_threads=1, intra_threads=threads, compute_type="float32"
    )

    def generate(prompts: Prompts, count: int) -> list[list[int]]:
        made = generator.generate_batch(
            [[f"t{token}" for token in prompt] for prompt in prompts],
            max_length=count,
            min_length=count,
            beam_size=1,
            sampling_topk=1,
            end_token=[],
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in made]

    return generate


def _llama_cpp(model: GPT, threads: int, batch: int, folder: Path) -> Generate:
    """Its own defaults: keys and values in float16, flash attention where it finds it faster."""
    import xllamacpp

    path = folder / "model.gguf"
    export_gguf(model, path)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.n_parallel, settings.n_ctx = batch, batch * model.config.max_sequence
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.verbosity = -1
    try:
        server = xllamacpp.Server(settings)
    except RuntimeError as error:
        raise Unmeasured(f"its server does not take the exported file ({error})") from None
    asked = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "logprobs": 1}

    def generate(prompts: Prompts, count: int) -> list[list[int]]:
        given = [list(prompt) for prompt in prompts]
        answer = server.handle_completions({"prompt": given, "n_predict": count, **asked})
        if "choices" not in answer:
            raise Unmeasured(f"llama.cpp answers {json.dumps(answer)[:200]}")
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [[each["id"] for each in choice["logprobs"]["content"]] for choice in choices]

    return generate


def _folder(model: GPT, folder: Path) -> Path:
    """The model as transformers reads it, with a vocabulary of the words t0, t1, …, which ctranslate2 insists on."""
    folder = folder / "published"
    if not folder.exists():
        from tokenizers import Tokenizer, models

        save_llama_folder(model, folder)
        words = {f"t{token}": token for token in range(model.config.vocabulary_size)}
        Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
        special = {"unk_token": "t0", "bos_token": "t1", "eos_token": "t2"}
        described = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


_ENGINES: dict[str, Callable[[GPT, int, int, Path], Generate]] = {
    OURS: _ours,
    TRANSFORMERS: _transformers,
    CTRANSLATE2: _ctranslate2,
    LLAMA_CPP: _llama_cpp,
}
