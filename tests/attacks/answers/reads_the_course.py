# Reads the lab's source, the grader and the gradebook by their paths.
# says: found []
# sandboxes: bwrap

import os
found = []
source = 'ROOT/solutions/90_toy/90_toy.py'
for path in ('ROOT', source, 'ROOT/../marks_of_everybody.db', 'COURSE'):
    try:
        found += [path, os.listdir(path) if os.path.isdir(path) else open(path).read()]
    except OSError:
        pass
raise Exception(f'found {found}')
