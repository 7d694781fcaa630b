"""Runs the engine for as long as standard input stays open.

Whoever starts it holds the other end: however that process ends, the engine
ends too. The argument is a directory to remove at the end, or nothing.
"""

import os
import runpy
import shutil
import signal
import socketserver
import sys
import threading
import time


def watch():
    # Not sys.stdin: a thread blocked in its lock breaks the interpreter's exit.
    while os.read(0, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(8)
    os._exit(1)


# The runtime API that the engine serves to functions writes an answer's head and body one
# after the other: each would wait 40 ms for the acknowledgement of the one before.
socketserver.StreamRequestHandler.disable_nagle_algorithm = True

doomed = sys.argv[1:]
sys.argv = ["ministack"]
threading.Thread(target=watch, daemon=True).start()
try:
    runpy.run_module("ministack", run_name="__main__")
finally:
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
