# Searches every folder for the course and the gradebook, except those of the machine and of installed packages.
# says: found []
# sandboxes: bwrap

import os, sys
secret = ('marks_of_everybody.db', '90_toy.py', '90_toy.ipynb', 'toy_course.py')
# How long the machine's own folders take depends on the machine. "reads the course" looks where the course lies.
machine = {'/usr', '/bin', '/lib', '/lib32', '/lib64', '/sbin', '/proc', '/sys', sys.prefix, sys.base_prefix}
machine |= {path for path in sys.path if path.endswith('-packages')}
found = []
for folder, below, files in os.walk('/'):
    below[:] = [name for name in below if os.path.join(folder, name) not in machine]
    found += [name for name in files if name in secret]
raise Exception(f'found {found}')
