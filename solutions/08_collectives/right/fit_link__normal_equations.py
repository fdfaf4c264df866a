def fit_link(sizes, seconds):
    rows = [(1 / t, s / t) for s, t in zip(sizes, seconds, strict=True)]
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(column) for column in zip(*rows, strict=True))
    determinant = xx * yy - xy**2
    return (x * yy - y * xy) / determinant, determinant / (y * xx - x * xy)
