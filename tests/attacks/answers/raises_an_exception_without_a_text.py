# Raises an error whose message cannot be read.
# says: without a readable message

class Mute(ValueError):
    def __str__(self):
        raise SystemExit
def fail():
    raise Mute('values')
def mean(values):
    return fail()
