"""Opens a session folder with XProf, as TensorBoard does, and prints what its tools find.

    tools.py SESSION_FOLDER
"""

import glob
import json
import os
import sys

from xprof.convert import raw_to_tool_data

# These two are what a user looks at first; an empty one is a failure.
NEEDED = ("overview_page", "trace_viewer@")


def main() -> None:
    files = sorted(glob.glob(os.path.join(sys.argv[1], "*.xplane.pb")))
    if not files:
        sys.exit(f"no .xplane.pb in {sys.argv[1]}")
    for tool in raw_to_tool_data.xspace_to_tool_names(files):
        if tool in ("memory_viewer", "graph_viewer"):
            continue  # They want a module's name as well.
        data, kind = raw_to_tool_data.xspace_to_tool_data(files, tool, {})
        size = len(data) if data else 0
        more = ""
        if tool == "trace_viewer@" and size:
            more = f", {len(json.loads(data)['traceEvents'])} events"
        print(f"  {tool:24} {size:9} bytes of {kind}{more}")
        if tool in NEEDED and size == 0:
            sys.exit(f"XProf found nothing for {tool}")


main()
