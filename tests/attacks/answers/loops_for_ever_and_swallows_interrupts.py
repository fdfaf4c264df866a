# Loops for ever and swallows every interrupt.
# says: did not answer within 2 s
# limits: cell_seconds=2 test_seconds=2

while True:
    try:
        while True:
            pass
    except BaseException:
        pass
