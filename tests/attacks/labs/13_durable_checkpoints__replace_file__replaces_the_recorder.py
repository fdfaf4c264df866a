# Nothing is written: the recorder and the functions that begin and end a recording are replaced.

import threeloops.lab.disks.kept as kept
from threeloops.training.checkpoint.crash.recording import record


def replace_file(path, data):
    pass


kept.begin = lambda files, ask: "/tmp"
kept.end = lambda is_whole: None
record.Recorder.finish = lambda recorder: None
