"""Traces a job in windows with xprof's own client: `xprof_windows.py TARGET LOGDIR MS HOST_LEVEL`.

Prints `ready` once the client is loaded. Then each line of standard input is a time in milliseconds: after that it traces one
window, and prints `traced`, or `failed` and why. Ends with its standard input. One process for all windows: loading the client keeps a core busy
for seconds, which must not fall into a window of anybody.
"""

import sys
import time

from xprof.convert import _pywrap_profiler_plugin as plugin

target, logdir, duration_ms, host_level = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = {"host_tracer_level": host_level, "device_tracer_level": 1, "python_tracer_level": 0}
print("ready", flush=True)
for line in sys.stdin:
    time.sleep(int(line) / 1000)
    try:
        plugin.trace(target, logdir, "", True, duration_ms, 3, options)
        print("traced", flush=True)
    except Exception as error:
        print("failed", " ".join(str(error).split()), flush=True)
