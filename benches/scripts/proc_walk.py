"""Who holds an accelerator, found as Python tools do: every link of every process, matched by name.

Prints the CPU seconds of each of N walks.
"""

import glob
import os
import re
import sys
import time

NODE = re.compile(r"/dev/(?:accel|vfio/)\d+")
for _ in range(int(sys.argv[1])):
    begin = time.process_time()
    owners = {}
    for link in glob.glob("/proc/*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if NODE.fullmatch(target):
            owners.setdefault(target, set()).add(int(link.split("/")[2]))
    print(time.process_time() - begin)
