# Calls IPython's exit and quit, then answers wrongly.
# says: mean

exit()
quit()
def mean(values):
    return 3.0
