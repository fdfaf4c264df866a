"""Generate the answer to one request.

`job.py` checks the request, `choice.py` generates one of its choices, `text_stream.py` turns tokens into text, and
`reported.py` reports the log-probabilities of tokens.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.service.generation.choice import Choice, Piece
    from threeloops.product.service.generation.job import Job, job_of
    from threeloops.product.service.generation.reported import Reported, chat_logprobs, completion_logprobs
    from threeloops.product.service.generation.text_stream import DONE, event
else:
    import_on_demand(__name__)

__all__ = ["DONE", "Choice", "Job", "Piece", "Reported", "chat_logprobs", "completion_logprobs", "event", "job_of"]
