"""Admission: who may send requests, how often, and how many at once. Other requests are refused at once, and the
refusal says when to try again.

>>> keys = Keys.load(Path("keys.toml"))
>>> admission = Admission(max_running=16, max_queued=64)
>>> client = keys.client(request.headers.get("authorization"))
>>> async with admission.admit(client, tokens=len(prompt) + max_tokens, deadline=30):
...     ...

All of it raises `Refused`, which has the status, the code and the Retry-After of the answer.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.service.admission.admission import Admission
    from threeloops.product.service.admission.client import Client, ClientLimits
    from threeloops.product.service.admission.keys import Keys, KeysFileError
    from threeloops.product.service.admission.refused import Refused
    from threeloops.product.service.admission.token_bucket import TokenBucket
else:
    import_on_demand(__name__)

__all__ = ["Admission", "Client", "ClientLimits", "Keys", "KeysFileError", "Refused", "TokenBucket"]
