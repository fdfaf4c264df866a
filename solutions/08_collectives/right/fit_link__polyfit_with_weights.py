def fit_link(sizes, seconds):
    slope, start = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return [start, 1 / slope]
