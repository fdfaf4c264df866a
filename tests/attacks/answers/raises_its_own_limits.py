# Raises its own resource limits.
# says: ValueError: not allowed to raise maximum limit
# sandboxes: bwrap ungrouped

import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
