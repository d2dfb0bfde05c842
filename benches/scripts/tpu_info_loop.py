"""Reads runtime metric services once a second with tpu-info's library: tpu_info_loop.py table|all ADDRESS…"""

import sys
import time

from tpu_info import device, metrics

LATENCIES = [
    "buffer_transfer_latency",
    "inbound_buffer_transfer_latency",
    "host_to_device_transfer_latency",
    "device_to_host_transfer_latency",
    "collective_e2e_latency",
    "host_compute_latency",
]


def read(address, everything):
    chip = device.TpuChip.V6E
    metrics.get_chip_usage(chip, address)
    if everything:
        metrics.get_runtime_hbm_utilization(address)
        metrics.get_tensorcore_idle_duration(address)
        metrics.get_hlo_queue_size(chip, address)
        metrics.get_hlo_exec_timing(chip, address)
        for name in LATENCIES:
            metrics.get_transfer_latency(name, address)


due = time.monotonic()
while True:
    for address in sys.argv[2:]:
        read(address, sys.argv[1] == "all")
    due += 1
    time.sleep(max(0, due - time.monotonic()))
