"""What a reader of an engine in another process may meet.

They mean what the errors of the same names mean in `threeloops.product.batching`. Those would bring torch with them,
which takes the front seconds to import and hundreds of megabytes to hold.
"""

__all__ = ["EngineStopped", "RequestFailed"]


class RequestFailed(RuntimeError):
    """This request ended with an error; others go on."""


class EngineStopped(RuntimeError):
    """The engine's process is not ready, has died, or was closed."""
