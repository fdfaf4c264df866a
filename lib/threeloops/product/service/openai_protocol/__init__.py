"""The messages of OpenAI's HTTP API that this service reads and writes: completions, chat completions and models.

`requests.py` defines the requests, and `structure.py` the fields with which a request sets the form of its answer.
`answers.py` defines the answers. `fields.py` has the rules for all messages, and lists the fields that the service
does not support.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.service.openai_protocol.answers import (
        ChatChoice,
        ChatCompletion,
        ChatMessage,
        Completion,
        CompletionChoice,
        Model,
        ModelList,
        TokensOfPrompt,
        Usage,
        usage,
    )
    from threeloops.product.service.openai_protocol.requests import (
        ChatRequest,
        CompletionRequest,
        Message,
        TextPart,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "ChatChoice", "ChatCompletion", "ChatMessage", "ChatRequest", "Completion", "CompletionChoice",
    "CompletionRequest", "Message", "Model", "ModelList", "TextPart", "TokensOfPrompt", "Usage", "usage",
]  # fmt: skip
