# Is written to a file by a cell magic and never defined.
# says: mean
# sandboxes: bwrap

%%writefile /tmp/threeloops.py
raise SystemExit
