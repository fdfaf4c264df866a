"""transformers as the peer of the engine: the same weights in its LlamaForCausalLM, generating in both of its ways."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import torch
from threeloops.models.gpt import GPT
from threeloops.models.llama_folder import save_llama_folder

from benchmarks.peer_packages import why_absent
from benchmarks.progress import finished
from benchmarks.result import Unmeasured

__all__ = ["CONTINUOUS", "STATIC", "Transformers", "no_transformers"]

STATIC, CONTINUOUS = "transformers, generate", "transformers, continuous batching"
Batch = list[tuple[tuple[int, ...], int]]


def no_transformers() -> str | None:
    """Why transformers cannot be compared with here; None if it can."""
    return why_absent("transformers")


class Transformers:
    """`tuned` gives each way of generating with the settings that were fastest for a load.

    Raises Unmeasured if it is missing, or its logits are not ours: then it would be no peer.
    """

    def __init__(self, model: GPT):
        if (missing := no_transformers()) is not None:
            raise Unmeasured(missing)
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        from transformers import LlamaForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            save_llama_folder(model, folder)
            self.model = LlamaForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
        # As a peer it generates as many tokens as it is asked for.
        self.model.generation_config.eos_token_id = None
        tokens = torch.arange(40)[None] % model.config.vocabulary_size
        with torch.inference_mode():
            ours, theirs = model(tokens), self.model(tokens).logits
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise Unmeasured(f"transformers' logits differ by up to {(ours - theirs).abs().max():.2g} from ours")

    def tuned(self, batch: Batch) -> list[tuple[str, str, Callable[[], object]]]:
        """Name, the settings chosen, and a run of the whole load, for each way that works here."""
        sizes = {f"{size} in a batch": self._static(batch, size) for size in (16, 32, 64)}
        budgets = {f"{tokens} tokens in a step": self._continuous(batch, tokens) for tokens in (64, 128, 256)}
        found = []
        for name, runs in ((CONTINUOUS, budgets), (STATIC, sizes)):
            times = {}
            for settings, run in runs.items():
                times[settings] = _seconds(run)
                finished(f"tried: {name}, {settings}")
            best = min(times, key=times.__getitem__)
            found.append((name, best, runs[best]))
        return found

    def _static(self, batch: Batch, size: int) -> Callable[[], object]:
        """Batches in the order of arrival, padded at their left, each as long as its longest answer."""

        @torch.inference_mode()
        def run() -> None:
            for start in range(0, len(batch), size):
                part = batch[start : start + size]
                longest, answer = max(len(prompt) for prompt, _ in part), max(answer for _, answer in part)
                tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt, _ in part])
                mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in part])
                made = self.model.generate(
                    tokens, attention_mask=mask, max_new_tokens=answer, do_sample=False, pad_token_id=0
                )
                assert made.shape == (len(part), longest + answer)

        return run

    def _continuous(self, batch: Batch, tokens: int) -> Callable[[], object]:
        from transformers import GenerationConfig
        from transformers.generation import ContinuousBatchingConfig

        room = sum(-(-(len(prompt) + answer) // 32) for prompt, answer in batch)

        def run() -> None:
            manager = self.model.init_continuous_batching(
                generation_config=GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=-1, pad_token_id=0),
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=32, num_blocks=room, max_batch_tokens=tokens, allow_block_sharing=False
                ),
            )
            manager.start()
            try:
                for number, (prompt, answer) in enumerate(batch):
                    manager.add_request(list(prompt), request_id=str(number), max_new_tokens=answer)
                left = {str(number): answer for number, (_, answer) in enumerate(batch)}
                while left:
                    result = manager.get_result(timeout=60)
                    if result is None or result.error:
                        raise Unmeasured(f"continuous batching of transformers: {result and result.error}")
                    if result.is_finished():
                        assert len(result.generated_tokens) == left.pop(result.request_id)
            finally:
                manager.stop(block=True)

        return run


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
