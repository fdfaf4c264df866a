# expect: capacities do not add up
# fails: values, edges
def level_bandwidth(working_set, levels):
    held = 0
    for level in levels:
        held += level.capacity
        if working_set <= held:
            return level.bandwidth
    return 0.0
