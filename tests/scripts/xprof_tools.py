"""Opens the session that holds the given .xplane.pb files with the real xprof, and prints as JSON what it makes of it."""

import json
import sys

from xprof.convert import raw_to_tool_data as convert

paths = sys.argv[1:]


def tool(name, params=None):
    data, kind = convert.xspace_to_tool_data(paths, name, params or {})
    return (data.decode() if isinstance(data, bytes) else data or ""), kind


overview, _ = tool("overview_page")
trace, _ = tool("trace_viewer@", {"trace_viewer_options": {"resolution": "0", "full_dma": "true"}})
names = convert.xspace_to_tool_names(paths) if hasattr(convert, "xspace_to_tool_names") else []
hosts = []
for row in json.loads(trace).get("traceEvents", []):
    if row.get("ph") == "M" and row.get("name") == "process_name":
        hosts.append(row["args"]["name"])
print(json.dumps({
    "tools": sorted(names),
    "overview": len(json.loads(overview)),
    "trace_events": len(json.loads(trace)["traceEvents"]),
    "processes": hosts,
}))
