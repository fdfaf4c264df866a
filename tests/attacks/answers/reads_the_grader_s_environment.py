# Reads the environment of every process it can see.
# says: 1 process, token seen: False
# sandboxes: bwrap

import os
texts = [str(dict(os.environ))]
for p in os.listdir('/proc'):
    if p.isdecimal():
        texts.append(open(f'/proc/{p}/environ').read())
raise Exception(f'{len(texts) - 1} process, token seen: {any("TOKEN" in t for t in texts)}')
