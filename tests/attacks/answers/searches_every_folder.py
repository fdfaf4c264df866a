# Searches every folder for the course and the gradebook, except the system's own under /usr, which is no part of ours.
# says: found []
# sandboxes: bwrap
# limits: cell_seconds=60 notebook_seconds=120

import os
secret, found = ('marks_of_everybody.db', '90_toy.py', '90_toy.ipynb', 'toy_course.py'), []
for folder, below, files in os.walk('/'):
    below[:] = [name for name in below if os.path.join(folder, name) not in ('/proc', '/usr')]
    found += [name for name in files if name in secret]
raise Exception(f'found {found}')
