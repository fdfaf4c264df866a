# Touches one page in every two MiB of a large mapping, so that its page tables are as large as its pages.
# says: held less than the limit | MiB of memory | Cannot allocate memory
# sandboxes: bwrap ungrouped
# limits: memory_mb=200

import mmap

MAP_NORESERVE = 0x4000

def touched():
    kept = 0
    for _ in range(400):
        area = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        areas.append(area)
        for at in range(0, 1 << 30, 2 << 20):
            area[at] = 1
            kept += 8192
    return kept

areas = []
kept = touched()
raise Exception("held less than the limit" if kept < 200 << 20 else f"held {kept} bytes")
