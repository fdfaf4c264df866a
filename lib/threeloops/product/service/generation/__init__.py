"""What one request asks of the engine: its job, the choices that are generated for it, their texts, and how likely
their tokens were.
"""

from threeloops.product.service.generation.choice import Choice, Piece
from threeloops.product.service.generation.job import Job, job_of
from threeloops.product.service.generation.reported import Reported, chat_logprobs, completion_logprobs
from threeloops.product.service.generation.text_stream import DONE, event

__all__ = ["DONE", "Choice", "Job", "Piece", "Reported", "chat_logprobs", "completion_logprobs", "event", "job_of"]
