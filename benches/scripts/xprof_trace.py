"""Captures with xprof's own client: `xprof_trace.py TARGETS LOGDIR MS`; prints the seconds that its call takes."""

import sys
import time

from xprof.convert import _pywrap_profiler_plugin as plugin

targets, logdir, duration_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = {"host_tracer_level": 2, "device_tracer_level": 1, "python_tracer_level": 0}
begin = time.monotonic()
plugin.trace(targets, logdir, "", True, duration_ms, 3, options)
print(time.monotonic() - begin)
