"""An Indexed Job of Kubernetes that grades one share of a class per index. It is written, not submitted: `kubectl apply
-f job.yaml` does that."""

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from threeloops_grader.worklist.nodes import UNFIT

__all__ = ["MOUNT", "Kubernetes", "indexed_job"]

MOUNT = "/class"
_FAILED = 2
"""The exit code of a worker that met a fault of its machine."""


@dataclass(frozen=True)
class Kubernetes:
    """The request for each pod. `claim` is the volume that all of them share, mounted at /class."""

    image: str
    claim: str
    shares: int = 16
    workers: int = 16
    memory: str = "4G"
    cores: int = 2
    gpus: int = 0
    retries: int = 3


def indexed_job(lab: str, words: list[str], request: Kubernetes) -> str:
    """Return the YAML of a Job whose pod number i runs `WORDS --shard i/shares`.

    A pod that is lost, or whose node cannot isolate submissions, is started again and costs no retry. Records that
    exist are not graded again, so that is harmless.
    """
    command = f'exec {shlex.join(words)} --shard "$JOB_COMPLETION_INDEX/{request.shares}"'
    resources: dict[str, Any] = {"cpu": str(request.cores), "memory": request.memory}
    if request.gpus:
        resources["nvidia.com/gpu"] = str(request.gpus)
    # bubblewrap makes namespaces and mounts a /proc of its own, which the default profile of a pod forbids. With
    # hostUsers: false the pod's root is nobody on the node.
    security = {
        "seccompProfile": {"type": "Unconfined"},
        "procMount": "Unmasked",
        "capabilities": {"add": ["SYS_ADMIN"]},
    }
    container = {
        "name": "grade",
        "image": request.image,
        "command": ["sh", "-c", command],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": security,
        "volumeMounts": [{"name": "class", "mountPath": MOUNT}],
    }
    pod = {
        "restartPolicy": "Never",
        "hostUsers": False,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "class", "persistentVolumeClaim": {"claimName": request.claim}}],
    }
    lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    unfit = {"action": "Ignore", "onExitCodes": {"containerName": "grade", "operator": "In", "values": [UNFIT]}}
    failed = {"action": "Count", "onExitCodes": {"containerName": "grade", "operator": "In", "values": [_FAILED]}}
    spec = {
        "completionMode": "Indexed",
        "completions": request.shares,
        "parallelism": min(request.workers, request.shares),
        "backoffLimitPerIndex": request.retries,
        "maxFailedIndexes": request.shares,
        "podFailurePolicy": {"rules": [unfit, lost, failed]},
        "template": {"metadata": {"labels": {"app": "threeloops-grade"}}, "spec": pod},
    }
    name = re.sub(r"[^a-z0-9]+", "-", f"threeloops-grade-{lab}".lower()).strip("-")[:63].rstrip("-")
    return yaml.safe_dump(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}, sort_keys=False, width=120
    )
