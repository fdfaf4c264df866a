# Opens files until it may not.
# says: Too many open files

f = []
while True:
    f.append(open('/dev/null'))
