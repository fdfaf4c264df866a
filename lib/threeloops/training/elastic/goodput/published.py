"""Published failure rates of training runs.

- "llama3": Grattafiori et al. 2024, *The Llama 3 Herd of Models* (arXiv 2407.21783), section 3.3.4 and table 5: 466
  interruptions in 54 days of the 405B model on up to 16,384 H100s, 47 of them planned. The counts of table 5 add up to
  419; the share that it prints beside the largest, 30.1% for 148, does not fit (35.3%).
- "opt": Zhang et al. 2022, *OPT: Open Pre-trained Transformer Language Models* (arXiv 2205.01068), section 2.5: in
  about 2 months on 992 A100s (section 2.4) at least 35 restarts by hand, and an estimated 70 or more automatic ones.
- "bloom": Bekman 2022, *The Technology Behind BLOOM Training* (huggingface.co/blog/bloom-megatron-deepspeed): 1 to 2
  failures of GPUs per week on 48 nodes (a cluster of about 400 A100s), 3.5 months, a checkpoint every 3 hours.
- "rsc1": Kokolis et al. 2024, *Revisiting Reliability in Large-Scale Machine Learning Research Clusters* (arXiv
  2410.21680): 6.50 failures per 1,000 node-days; mean times to failure of 7.9 h for jobs of 1,024 GPUs, as measured,
  and 1.8 h at 16,384 and 0.23 h at 131,072 GPUs, as projected. Many users share that cluster.
"""

from dataclasses import dataclass

__all__ = ["LLAMA3_CAUSES", "MEASURED", "RSC1_JOBS", "RSC1_PER_NODE_DAY", "FailureCount", "failures_per_node_day"]

_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class FailureCount:
    """Unplanned interruptions of one run. `most` differs if the source gives a range."""

    source: str
    gpus: int
    days: float
    least: float
    most: float
    what: str

    @property
    def nodes(self) -> float:
        return self.gpus / _GPUS_PER_NODE

    @property
    def failures(self) -> float:
        return (self.least + self.most) / 2

    def predicted(self, per_node_day: float) -> float:
        """How many failures nodes that fail at this rate would have had."""
        return per_node_day * self.nodes * self.days


MEASURED = (
    FailureCount("llama3", 16_384, 54, 419, 419, "unexpected interruptions"),
    FailureCount("opt", 992, 60, 35 + 70, 35 + 70, "restarts, of which 70 are the authors' estimate"),
    FailureCount("bloom", 384, 7, 1, 2, "failures of GPUs per week"),
)

LLAMA3_CAUSES = {
    "GPU": 148, "GPU HBM3 memory": 72, "software": 54, "network switch or cable": 35, "unplanned host maintenance": 32,
    "GPU SRAM memory": 19, "GPU system processor": 17, "NIC": 7, "NCCL watchdog timeout": 7,
    "silent data corruption": 6, "GPU thermal interface or sensor": 6, "SSD": 3, "power supply": 3,
    "server chassis": 2, "IO expansion board": 2, "dependency": 2, "CPU": 2, "system memory": 2,
}  # fmt: skip
"""Table 5: root causes of the 419 unexpected interruptions."""

RSC1_PER_NODE_DAY = 6.50e-3
RSC1_JOBS = {1_024: 7.9, 16_384: 1.8, 131_072: 0.23}
"""Mean time to failure of a job in hours, by its number of GPUs. The first is measured, the others projected."""


def failures_per_node_day(run: FailureCount) -> float:
    """The rate of a Poisson process that is most likely to give this many failures: their number per node-day."""
    return run.failures / (run.nodes * run.days)
