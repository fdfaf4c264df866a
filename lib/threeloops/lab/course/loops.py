"""The map of the course: three nested loops, the labs on them, and those where the loops meet."""

from dataclasses import dataclass

__all__ = ["LOOPS", "Lab", "labs"]

LOOPS = {
    "start": "Start",
    "inner": "The inner loop: one GPU",
    "training": "The training loop: many GPUs as one",
    "product": "The product loop: a model under load",
    "meet": "Where the loops meet: electives",
}


@dataclass(frozen=True)
class Lab:
    """One lab; `loop` is a key of LOOPS, `checks` the number of its test cells."""

    number: int
    slug: str
    title: str
    question: str
    loop: str
    checks: int = 4

    @property
    def name(self) -> str:
        """The name of its folder: `03_triton_fusion`."""
        return f"{self.number:02d}_{self.slug}"


def labs() -> tuple[Lab, ...]:
    """All labs in their order."""
    return _LABS


_LABS = (
    Lab(0, "start_here", "Start here", "Can this machine teach me?", "start", checks=12),
    Lab(1, "roofline", "The roofline", "Is the GPU doing useful math?", "inner", checks=16),
    Lab(2, "memory_hierarchy", "The memory hierarchy", "Why do kernels stall?", "inner", checks=14),
    Lab(3, "triton_fusion", "Fusion in Triton", "Why do fewer, fatter kernels win?", "inner", checks=14),
    Lab(4, "flash_attention", "FlashAttention", "Can an algorithm move less memory?", "inner", checks=14),
    Lab(5, "mixed_precision", "Mixed precision", "How few bits can you train with?", "inner", checks=15),
    Lab(6, "memory_budget", "The memory budget", "Will it fit?", "inner", checks=13),
    Lab(7, "feeding_the_gpu", "Feeding the GPU", "Is the GPU hungry?", "inner", checks=14),
    Lab(8, "collectives", "Collectives", "How do many GPUs sum their gradients?", "training", checks=12),
    Lab(9, "data_parallel", "Data parallelism", "When is N times the GPUs N times the speed?", "training", checks=13),
    Lab(10, "sharded_data_parallel", "Sharded data parallelism", "Why does every GPU keep the same copy?", "training",
        checks=14),
    Lab(11, "tensor_and_expert_parallel", "Tensor and expert parallel", "How do several GPUs share one layer?",
        "training", checks=11),
    Lab(12, "pipeline_parallel", "Pipeline parallelism", "How long is a step, before it is run?", "training",
        checks=12),
    Lab(13, "durable_checkpoints", "Durable checkpoints", "What is left after a power cut?", "training", checks=14),
    Lab(14, "elastic_training", "Elastic training", "What does a failure cost?", "training", checks=10),
    Lab(15, "decode_path", "The decode path", "What does one token cost?", "product", checks=14),
    Lab(16, "continuous_batching", "Continuous batching", "Which requests run next?", "product", checks=12),
    Lab(17, "production_service", "A production service", "What breaks under load?", "product", checks=14),
    Lab(18, "serving_fleet", "A serving fleet", "How many replicas, and when?", "product", checks=14),
    Lab(19, "capstone_plan", "The plan", "Can you plan all of it?", "product", checks=13),
    Lab(20, "disaggregated_serving", "Disaggregated serving", "When is it worth moving the cache?", "meet", checks=16),
)  # fmt: skip
