"""What xprof says of a trace, as JSON: xprof_figures.py FILE

markers: step number, begin and duration in us, of every step marker in the trace viewer; ops: how often each HLO
operation ran there; steps: the names and durations in ms of the overview page's steps.
"""

import json
import re
import sys

from xprof.convert import raw_to_tool_data


def tool(name):
    data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], name, {})
    return json.loads(data)


markers, ops = [], {}
for event in tool("trace_viewer")["traceEvents"]:
    args = event.get("args", {})
    if "hlo_op" in args:
        ops[args["hlo_op"]] = ops.get(args["hlo_op"], 0) + 1
    marker = re.fullmatch(r"train (\d+)", event.get("name", ""))
    if marker:
        markers.append([int(marker.group(1)), event["ts"], event["dur"]])

steps = []
for table in tool("overview_page"):
    columns = [column["id"] for column in table.get("cols", [])]
    if "stepnum" in columns and "tooltip" in columns:
        for row in table["rows"]:
            cells = dict(zip(columns, (cell["v"] for cell in row["c"])))
            duration = re.search(r"duration: ([0-9.]+) ms", cells["tooltip"])
            steps.append([cells["stepnum"], float(duration.group(1))])
json.dump({"markers": sorted(markers), "ops": ops, "steps": steps}, sys.stdout)
