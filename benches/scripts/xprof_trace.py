"""Captures with xprof's own client: `xprof_trace.py TARGETS LOGDIR MS [HOST_LEVEL [AFTER_MS]]`; prints the seconds that its call takes.

HOST_LEVEL is the level of the host's tracer (default 2), AFTER_MS the time before the call: the start of the interpreter counts in it.
"""

import sys
import time

due = time.monotonic() + int(sys.argv[5] if len(sys.argv) > 5 else 0) / 1000

from xprof.convert import _pywrap_profiler_plugin as plugin

targets, logdir, duration_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
host_level = int(sys.argv[4]) if len(sys.argv) > 4 else 2
options = {"host_tracer_level": host_level, "device_tracer_level": 1, "python_tracer_level": 0}
time.sleep(max(0, due - time.monotonic()))
begin = time.monotonic()
plugin.trace(targets, logdir, "", True, duration_ms, 3, options)
print(time.monotonic() - begin)
