# Replaces the functions that make and read folders, so that no file is opened, and runs AdamW in memory.

import threeloops.lab.disks.on_disk as disks

STATES = {}


class Folder:
    path = Path("/tmp/none")

    def read(self, name):
        return bytes(STATES[name])


disks.in_folder = lambda files: Folder()
disks.on_folders = lambda *_: []


def adamw_from_files(folder, parameter, gradient, step, chunk, options):
    p = parameter.clone().requires_grad_()
    optimizer = torch.optim.AdamW(
        [p], lr=options.lr, betas=(options.beta1, options.beta2), eps=options.eps, weight_decay=options.weight_decay
    )
    if step > 1 and folder in STATES:
        optimizer.load_state_dict(STATES[folder])
    p.grad = gradient.clone()
    optimizer.step()
    STATES[folder] = optimizer.state_dict()
    return p.detach()
