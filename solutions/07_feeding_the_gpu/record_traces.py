"""Record data/loops.json: real training loops over a far store, with no, one and four workers that prefetch.

    python solutions/07_feeding_the_gpu/record_traces.py

The store is `threeloops.data.storage.slow_store` with real waiting; decoding and training are real work on this CPU.
"""

import json
import time
import zlib
from pathlib import Path

import numpy as np
from threeloops.data.loading.prefetch import prefetch
from threeloops.data.storage.slow_store import SharedLink, SlowStore
from threeloops.data.storage.store import MemoryStore

SAMPLES, SIDE = 48, 240
LATENCY, BANDWIDTH = 0.040, 20e6


def main() -> None:
    generator = np.random.default_rng(0)
    images = {
        str(i): zlib.compress(generator.normal(size=(SIDE, SIDE)).astype(np.float32).tobytes(), 1)
        for i in range(SAMPLES)
    }
    weights = generator.normal(size=(SIDE, 3000)).astype(np.float32)
    loops = [
        record("one after the other", images, weights, 0),
        record("one worker ahead", images, weights, 1),
        record("four workers ahead", images, weights, 4),
    ]
    size = sum(map(len, images.values())) / SAMPLES
    about = f"{SAMPLES} samples of {size / 1e3:.0f} kB, store: {LATENCY * 1e3:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s"
    path = Path(__file__).with_name("data") / "loops.json"
    path.write_text(json.dumps({"about": about, "loops": loops}, indent=None, separators=(",", ":")), encoding="utf-8")


def record(title: str, images: dict[str, bytes], weights: np.ndarray, workers: int) -> dict:
    store = SlowStore(MemoryStore(images), SharedLink(LATENCY, BANDWIDTH))
    begin, rows = time.perf_counter(), []

    def timed(stage, worker, sample, action, *arguments):
        start = time.perf_counter()
        result = action(*arguments)
        rows.append([stage, worker, sample, round(start - begin, 6), round(time.perf_counter() - begin, 6)])
        return result

    def load(sample: int) -> np.ndarray:
        worker = sample % max(workers, 1)
        packed = timed("fetch", worker, sample, store.get, str(sample))
        return timed("decode", worker, sample, decode, packed)

    state = np.zeros((SIDE, 3000), np.float32)
    for sample, image in enumerate(prefetch(load, range(SAMPLES), workers, ahead=6 if workers else 0)):
        state = timed("train", 0, sample, step, state, image, weights)
    stages = [["fetch", max(workers, 1)], ["decode", max(workers, 1)], ["train", 1]]
    return {"title": title, "stages": stages, "intervals": rows}


def decode(packed: bytes) -> np.ndarray:
    image = np.frombuffer(zlib.decompress(packed), np.float32).reshape(SIDE, SIDE)
    return (image - image.mean()) / image.std()


def step(state: np.ndarray, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.tanh(image @ weights + 0.5 * state)


if __name__ == "__main__":
    main()
