"""The sessions of a logdir and their hosts as XProf's own page lists them, as JSON: xprof_hosts.py LOGDIR

For each session the hosts that can be chosen in the trace viewer, in XProf's order.
"""

import json
import sys

from xprof import server
from xprof.profile_plugin_loader import ProfilePluginLoader

logdir = sys.argv[1]
context = server.TBContext(logdir, server.DataProvider(logdir), server.TBContext.Flags(False))
context.hide_capture_profile_button = True
context.enable_tab_name_label = False
context.src_prefix = None
plugin = ProfilePluginLoader().load(context)
hosts = lambda run: [host["hostname"] for host in plugin.host_impl(run, "trace_viewer@")]
json.dump({run: hosts(run) for run in plugin.runs_imp()}, sys.stdout)
