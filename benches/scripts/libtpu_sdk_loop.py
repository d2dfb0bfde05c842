"""Reads eight metrics once a second through the libtpu SDK."""

import time

from libtpu.sdk import tpumonitoring

NAMES = [
    "tensorcore_util",
    "hbm_util",
    "duty_cycle_pct",
    "hbm_capacity_total",
    "hbm_capacity_usage",
    "hlo_queue_size",
    "hlo_execution_timing",
    "buffer_transfer_latency",
]

due = time.monotonic()
while True:
    for name in NAMES:
        tpumonitoring.get_metric(name).data()
    due += 1
    time.sleep(max(0, due - time.monotonic()))
