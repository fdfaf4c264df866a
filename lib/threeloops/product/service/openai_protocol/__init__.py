"""What goes over the wire: OpenAI's completions, chat completions and models, as far as this service has them.

`requests.py` is what clients ask for, `answers.py` what they get, and `fields.py` lists what this service does not have
and refuses by name.
"""

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
    END_OF_TEXT,
    ChatRequest,
    CompletionRequest,
    Message,
    TextPart,
)

__all__ = [
    "END_OF_TEXT", "ChatChoice", "ChatCompletion", "ChatMessage", "ChatRequest", "Completion", "CompletionChoice",
    "CompletionRequest", "Message", "Model", "ModelList", "TextPart", "TokensOfPrompt", "Usage", "usage",
]  # fmt: skip
