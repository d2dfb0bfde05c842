"""Opens a trace as xprof's overview page: xprof_overview.py FILE"""

import os
import sys

from xprof.convert import raw_to_tool_data

# xprof keeps results beside the trace, and would use them the next time.
folder = os.path.dirname(os.path.abspath(sys.argv[1]))
for name in os.listdir(folder):
    if not name.endswith(".xplane.pb"):
        os.unlink(os.path.join(folder, name))
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "overview_page", {})
assert data, "xprof gave nothing"
