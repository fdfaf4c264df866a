"""What a rank may ask the communicator for: it says what it likes, so each job is checked before it begins."""

import pytest
from threeloops.training.cluster.machine.calls import Collective, Submit
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.processes.communicator import Communicator


@pytest.mark.parametrize(
    ("operation", "options", "data", "message"),
    [
        ("barrier", {}, b"1234", "rank 0 submits a barrier with 4 bytes: expected none"),
        ("all_reduce", {"dtype": "load"}, b"", "expected one of the dtypes bool, uint8"),
        ("all_reduce", {"dtype": "quint8"}, b"", "expected one of the dtypes bool, uint8"),
        ("all_reduce", {"reduction": "XOR"}, b"", "expected one of the reductions SUM, AVG"),
        ("fork", {}, b"", "expected one of the operations all_gather"),
        ("all_reduce", {"dtype": "float32"}, b"12345", "5 bytes of float32"),
        ("all_reduce", {"ranks": (1, 2)}, b"", r"to ranks \(1, 2\), root 0"),
        ("all_reduce", {"ranks": (0, 0)}, b"", r"to ranks \(0, 0\), root 0"),
        ("broadcast", {"root": 2}, b"", "root 2"),
        ("all_to_all", {"sends": (1, 1, 1)}, b"123", r"with parts \(1, 1, 1\) and \(\)"),
        ("all_to_all", {"gets": (1 << 40, 0)}, b"", "with parts"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_its_rank(operation, options, data, message):
    parts = {name: options.pop(name) for name in ("sends", "gets") if name in options}
    call = Submit(1, 0.0, Collective("world", **{"ranks": (0, 1)} | options, operation=operation), len(data), **parts)
    with pytest.raises(ClusterError, match=message):
        Communicator().submit(0, call, memoryview(data))
