# Returns a tensor on the meta device.
# says: meta

import torch
def mean(values):
    return torch.empty((), device='meta')
