"""Record the profiles in data/: ResNet-50 on this CPU, eager and compiled, and synthetic GPU traces derived from them.

    python solutions/01_roofline/record_profiles.py              # record, then derive the synthetic traces
    python solutions/01_roofline/record_profiles.py --synthetic  # derive them again from the recorded ones

A trace is torch.profiler's own: one event for each operator call, one record for each allocation. What the profiler does
not know, the least traffic and arithmetic of a call, is added to the events that do the work, from their shapes.
Kernels that torch.compile generated have no shapes in a trace: their C++ signature says what they read and write.
The synthetic GPU traces keep the structure of the recorded ones; their times come from a model, stated in `synthesise`.
"""

import argparse
import hashlib
import json
import re
import time
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
import torch._inductor.config as inductor
from threeloops.hardware import accelerator, measure_copy_bandwidth, measure_matmul_rate
from threeloops.models.resnet import resnet50
from torch._inductor.codecache import PyCodeCache
from torch.profiler import ProfilerActivity, profile

DATA = Path(__file__).parent / "data"
BATCH, SIZE, THREADS = 16, 224, 2
GENERATED = re.compile(r"graph_\d+_cpp_fused_(.*?)_?\d*$")


def work_of(name: str, shapes: list, settings: list, element: int = 4) -> tuple[int, int]:
    """Least bytes and FLOPs of one call, by the conventions of exercise 1; (0, 0) for calls that only dispatch."""
    if name == "aten::mkldnn_convolution":
        (n, _, height, width), (out, depth, rows, cols) = shapes[0], shapes[1]
        pad, stride = settings[3], settings[4]
        high = (height + 2 * pad[0] - rows) // stride[0] + 1
        wide = (width + 2 * pad[1] - cols) // stride[1] + 1
        flops = 2 * n * out * high * wide * depth * rows * cols
        return element * (prod(shapes[0]) + prod(shapes[1]) + n * out * high * wide), flops
    size = prod(shapes[0]) if shapes and shapes[0] else 0
    if name == "aten::native_batch_norm":
        return element * (2 * size + 4 * shapes[0][1]), 2 * size
    if name == "aten::clamp_min":
        return element * 2 * size, size
    if name == "aten::add":
        return element * 3 * size, size
    if name == "aten::max_pool2d_with_indices":
        out = size // 4
        return element * (size + out) + 8 * out, 8 * out
    if name == "aten::mean":
        return element * (size + shapes[0][0] * shapes[0][1]), size
    if name == "aten::addmm":
        (m, k), (_, n) = shapes[1], shapes[2]
        return element * (m * k + k * n + n + m * n), 2 * m * k * n + m * n
    return 0, 0


def traffic_of_generated_kernels(call) -> list[int]:
    """Bytes that each generated kernel of one `call()` reads and writes, in the order of their launches."""
    launched, restore = [], []
    for module in PyCodeCache.modules:
        source = Path(module.__file__).read_text()
        for name in [name for name in vars(module) if name.startswith("cpp_fused")]:
            kernel = getattr(module, name)
            body = source[source.index(f"{name} = async_compile") :]
            modes = re.search(r"void\s+kernel\((.*?)\)", body, re.S).group(1).split(",")
            passes = [2 if "in_out_ptr" in mode else 1 for mode in modes]

            def counted(*tensors, kernel=kernel, passes=passes):
                launched.append(sum(p * t.untyped_storage().nbytes() for p, t in zip(passes, tensors, strict=False)))
                return kernel(*tensors)

            setattr(module, name, counted)
            restore.append((module, name, kernel))
    call()
    for module, name, kernel in restore:
        setattr(module, name, kernel)
    return launched


def record(call, traffic: list[int]) -> dict:
    """One traced call: its events and its allocations, times in µs from the first event."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as tracer:
        began = time.perf_counter()
        call()
        wall = time.perf_counter() - began
    trace = sorted(tracer.events(), key=lambda e: (e.time_range.start, -e.time_range.end))
    trace = [event for event in trace if event.name != "[memory]"]
    index = {event.id: i for i, event in enumerate(trace)}
    origin, kernels, events = trace[0].time_range.start, iter(traffic), []
    for event in trace:
        name, (moved, flops) = event.name, work_of(event.name, event.input_shapes, event.concrete_inputs)
        if match := GENERATED.match(name):
            fused = match.group(1).replace("_native_batch_norm_legit_no_training", "batch_norm")
            name, moved = f"fused::{fused}", next(kernels)
        elif name.startswith("## Call CompiledFxGraph"):
            name = "CompiledFxGraph"
        parent = index[event.cpu_parent.id] if event.cpu_parent else -1
        start, duration = event.time_range.start - origin, event.time_range.end - event.time_range.start
        events.append([name, parent, round(start, 3), round(duration, 3), 0.0, moved, flops])
    raw = tracer.profiler.kineto_results
    zero = next(e.start_ns() for e in raw.events() if e.name() == trace[0].name) / 1e3
    allocations = [
        [round(e.start_ns() / 1e3 - zero, 3), e.nbytes()] for e in raw.events() if e.name() == "[memory]" and e.nbytes()
    ]
    return {"wall_us": round(wall * 1e6, 1), "events": events, "allocations": sorted(allocations, key=lambda a: a[0])}


def least_disturbed(recordings: list[dict]) -> dict:
    """The fastest recording: the machine is shared, and what others do to it only ever adds time."""
    return min(recordings, key=lambda r: r["wall_us"])


def best_convolution_rate(runs: int) -> float:
    """FLOP/s of a 3×3 convolution, 256 → 256 channels: on some CPUs its library reaches more than the one for matmul."""
    layer, images = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False), torch.randn(8, 256, 28, 28)
    seconds = []
    with torch.no_grad():
        for _ in range(runs):
            began = time.perf_counter()
            layer(images)
            seconds.append(time.perf_counter() - began)
    return 2 * images.numel() * layer.weight.numel() / 256 / min(seconds)


def dispatch_us() -> float:
    """What the host pays for an operator that has nothing to do: median of many one-element additions."""
    one, samples = torch.ones(1), []
    with torch.no_grad():
        for _ in range(2000):
            began = time.perf_counter()
            one.add_(1.0)
            samples.append(time.perf_counter() - began)
    return float(np.median(samples)) * 1e6


def convolution_weights() -> list[int]:
    """The number of weights of each convolution of ResNet-50, in the order of the calls."""
    weights = []
    with torch.device("meta"), torch.no_grad():
        model = resnet50().eval()
        for layer in (layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)):
            layer.register_forward_hook(lambda layer, *_: weights.append(layer.weight.numel()))
        model(torch.empty(1, 3, SIZE, SIZE))
    return weights


def work_for(images: int, events: list, element: int = 2) -> list[tuple[int, int]]:
    """Bytes and FLOPs of each recorded call, for another number of images and size of element.

    The weights of convolutions and of the last layer stay the same. those of batch norms, at most 0.3% of what a call
    moves, are counted as if they grew with the images.
    """
    weights, last, work = iter(convolution_weights()), 2048 * 1000 + 1000, []
    for name, _, _, _, _, moved, flops in events:
        fixed = next(weights) if name == "aten::mkldnn_convolution" else last if name == "aten::addmm" else 0
        elements = (moved // 4 - fixed) * images // BATCH + fixed
        work.append((elements * element, flops * images // BATCH))
    return work


def synthesise(recorded: dict, images: int, seed: int) -> dict:
    """The same calls as they would look on an H100 in FP16, on more images. Labelled synthetic; nothing was measured.

    Device time of a call: 1.8 µs, plus the larger of its compute floor at 65% of peak and its memory floor at 90% of
    bandwidth, times log-normal noise of 3%. A large matmul and a large copy reached these shares on an H100
    (benchmarks/evidence). Host time of an event: 2.5 µs of its own, plus 5 µs where it launches.
    """
    gpu, rng = accelerator("H100 SXM"), np.random.default_rng(seed)
    peak, bandwidth, launch = gpu.rate("fp16"), gpu.memory_bandwidth, 5.0
    renamed = {"aten::mkldnn_convolution": "aten::cudnn_convolution"}
    rows, children = recorded["events"], {}
    work = work_for(images, rows)
    for i, row in enumerate(rows):
        children.setdefault(row[1], []).append(i)
    events, clock = [None] * len(rows), 0.0

    def run(i: int) -> None:
        nonlocal clock
        name, parent = rows[i][:2]
        moved, flops = work[i]
        name = renamed.get(name, name).replace("fused::", "triton::")
        began = clock
        noise = rng.lognormal(0.0, 0.03)
        device = (1.8 + 1e6 * max(flops / (0.65 * peak), moved / (0.9 * bandwidth))) * noise if moved else 0.0
        clock += 2.5 + (launch if moved else 0.0)
        for child in children.get(i, []):
            run(child)
        events[i] = [name, parent, round(began, 3), round(clock - began, 3), round(device, 3), moved, flops]

    for top in children[-1]:
        run(top)
        clock += 1.0
    finished = 0.0
    for _, _, start, own, device, moved, _ in events:
        finished = max(finished, start + min(own, 2.5 + launch)) + device if moved else finished
    old = np.array([row[2] for row in rows])
    new = np.array([event[2] for event in events])
    allocations = [
        [round(float(np.interp(t, old, new)), 3), size // 2 * images // BATCH] for t, size in recorded["allocations"]
    ]
    machine = {"name": gpu.name, "peak_flops": peak, "bandwidth": bandwidth, "launch_us": launch}
    return {
        "source": "synthetic",
        "device": "cuda",
        "machine": machine,
        "wall_us": round(max(clock, finished), 1),
        "events": events,
        "allocations": allocations,
    }


def save(name: str, contents: dict) -> None:
    columns = {k: v for k, v in contents.items() if k not in ("events", "allocations")}
    lines = [json.dumps(columns, indent=1, ensure_ascii=False)[:-2]]
    for key in ("events", "allocations"):
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in contents[key])
        lines.append(f' "{key}": [\n{rows}\n]')
    (DATA / name).write_text(",\n".join(lines) + "\n}\n")


def record_both() -> None:
    """Trace the eager and the compiled pass on this CPU, and save them."""
    torch.set_num_threads(THREADS)
    inductor.cpp.enable_kernel_profile = True
    torch.manual_seed(0)
    model, images = resnet50().eval(), torch.randn(BATCH, 3, SIZE, SIZE)
    # Roofs are the best of many runs of two probes: a roof is what the machine can do, undisturbed.
    matmul_rate = max(measure_matmul_rate("fp32", "cpu", size=2048, runs=60).samples)
    machine = {
        "name": f"2-core CPU, {THREADS} threads, float32",
        "peak_flops": round(max(matmul_rate, best_convolution_rate(200))),
        "bandwidth": round(max(measure_copy_bandwidth("cpu", runs=60).samples)),
        "launch_us": round(dispatch_us(), 3),
    }  # fmt: skip
    common = {"source": "recorded", "device": "cpu", "machine": machine}
    with torch.no_grad():
        compiled = torch.compile(model)
        compiled(images)
        traffic = traffic_of_generated_kernels(partial(compiled, images))
        for title, call, kernels in (("eager", model, []), ("compiled", compiled, traffic)):
            call(images)
            chosen = least_disturbed([record(partial(call, images), kernels) for _ in range(25)])
            heading = {"title": f"ResNet-50 forward, {BATCH} images {SIZE}×{SIZE}, float32, {title}"}
            save(f"resnet50_cpu_{title}.json", heading | common | chosen)


def derive_synthetic() -> None:
    """Save the synthetic traces, from the recorded ones in data/."""
    for title, images in (("eager", 16), ("eager", 128), ("compiled", 128)):
        recorded = json.loads((DATA / f"resnet50_cpu_{title}.json").read_text())
        heading = {"title": f"ResNet-50 forward, {images} images {SIZE}×{SIZE}, float16, {title} (synthetic)"}
        save(f"resnet50_gpu_{title}_{images}_synthetic.json", heading | synthesise(recorded, images, seed=len(title)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--synthetic", action="store_true", help="derive the synthetic traces only")
    if not parser.parse_args().synthetic:
        record_both()
    derive_synthetic()
    write_manifest()


def write_manifest() -> None:
    """Describe every file of data/: bytes, hash, source and licence."""
    torch_version = torch.__version__
    on_gpu = "as a timing model puts it on an H100"
    what = {
        "resnet50_cpu_eager.json": "recorded trace of one ResNet-50 forward pass on a 2-core CPU, eager",
        "resnet50_cpu_compiled.json": "recorded trace of the same pass under torch.compile",
        "resnet50_gpu_eager_16_synthetic.json": f"SYNTHETIC trace: the eager pass on 16 images {on_gpu}",
        "resnet50_gpu_eager_128_synthetic.json": f"SYNTHETIC trace: the eager pass on 128 images {on_gpu}",
        "resnet50_gpu_compiled_128_synthetic.json": f"SYNTHETIC trace: the compiled pass on 128 images {on_gpu}",
        "datasheets.json": "rows of vendor datasheets, as printed: rate, its footnote, bandwidth, units",
    }
    entries = []
    for name, description in what.items():
        contents = (DATA / name).read_bytes()
        source = f"record_profiles.py, torch {torch_version}" if name.startswith("resnet") else "stated in each row"
        entries.append(
            {
                "file": name,
                "bytes": len(contents),
                "sha256": hashlib.sha256(contents).hexdigest(),
                "source": source,
                "licence": "CC-BY-4.0",
                "what": description,
            }
        )
    (DATA / "MANIFEST.json").write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
