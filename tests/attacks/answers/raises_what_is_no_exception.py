# Raises a BaseException, which a test's own handlers do not catch.
# says: caught?

class Bad(BaseException): pass
def fail():
    raise Bad('caught?')
def mean(values):
    return fail()
