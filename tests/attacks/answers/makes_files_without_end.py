# Makes empty files until no inode is left.
# says: No space left on device
# sandboxes: bwrap

for n in range(100_000):
    open(f'/tmp/{n}', 'w').close()
