"""What ranks did between two moments of a run: their collectives by name, and the bytes of all of them."""

from threeloops.training.cluster.machine.calls import COMMUNICATION


def collectives(run, start, end, rank=0):
    """Names of the collectives that a rank began in [start, end), in order."""
    spans = [span for span in run.spans if span.rank == rank and span.timeline == COMMUNICATION]
    return [span.what for span in sorted(spans, key=lambda span: span.start) if start <= span.start < end]


def bytes_sent(run, start, end):
    """By all ranks together."""
    return sum(message.size for message in run.messages if start <= message.ready < end)
