"""Versions of a model, and switching between them without dropping a request.

>>> registry = Registry(folder)
>>> registry.activate(registry.publish("2024-06-01", exported).name)
>>> switch = RollingSwitch(start, stop)                   # start: a version → an engine that is ready
>>> await switch.to(registry.current())
>>> async with switch.lease() as engine:                  # this engine stays open for as long
...     ...
>>> await switch.to(registry.rollback())
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.service.models.registry import Registry, RegistryError
    from threeloops.product.service.models.switch import NotServingError, RollingSwitch, SwitchFailedError
    from threeloops.product.service.models.version import Version
else:
    import_on_demand(__name__)

__all__ = ["NotServingError", "Registry", "RegistryError", "RollingSwitch", "SwitchFailedError", "Version"]
