# Loops for ever when it is called.
# says: did not answer within 2 s
# limits: cell_seconds=2 test_seconds=2

def spin():
    while True:
        pass
def mean(values):
    return spin()
