# Returns more array data than may cross the wall.
# says: too large to cross between processes
# limits: memory_mb=3000

def mean(values):
    return np.zeros(75 << 20)
