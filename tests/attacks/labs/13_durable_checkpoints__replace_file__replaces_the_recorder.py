# Writes nothing, and replaces the recorder and the functions that begin and end a recording.

import threeloops.lab.disks.kept as kept
from threeloops.training.checkpoint.crash.recording import record


def replace_file(path, data):
    pass


kept._begin = lambda files, ask: "/tmp"
kept._end = lambda is_whole: None
record.Recorder.finish = lambda recorder: None
