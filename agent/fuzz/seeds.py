"""Writes one or more seeds for each target below corpus/."""

import json
import pathlib
import struct

here = pathlib.Path(__file__).parent


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """One protobuf field: bytes and text, integers, or doubles."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3) + varint(value)


def seed(target, name, data):
    folder = here / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def runtime_reply(*measures):
    series = b""
    for device, measure in enumerate(measures):
        attribute = field(1, field(1, "device-id") + field(2, field(3, device)))
        series += field(3, attribute + measure)
    return field(1, field(1, "name") + field(2, "description") + series)


gauges = runtime_reply(field(3, field(1, 0.5)), field(3, field(2, 7)), field(3, field(3, "1.5")))
bounds = field(6, field(2, field(1, 3) + field(2, 2.0) + field(3, 1.0)))
distribution = runtime_reply(field(5, field(1, 3) + field(2, 1.5) + bounds + field(7, b"\x01\x02\x00\x00")))
for which in range(0, 24, 3):
    for name, reply in (("gauges", gauges), ("distribution", distribution)):
        seed("runtime_metric", f"{name}-{which}", bytes([which, 127]) + reply + reply)
seed("runtime_metric", "names", field(1, field(1, "tpu.runtime.hbm.memory.usage.bytes")))

health = field(4, field(1, field(1, 1) + field(2, 2) + field(3, 10)) + field(2, field(1, "tray1.chip0.ici0") + field(2, 5)))
utilization = field(2, field(1, 1) + varint(2 << 3 | 5) + struct.pack("<f", 50.0))
seed("host_service", "one", field(1, field(1, field(1, 1795000000)) + utilization + field(3, "0") + health))

values = field(3, field(1, field(1, "duty_cycle_pct") + field(2, "20.57")))
reply = field(1, 7) + values
seed("libtpu", "frame", varint(len(reply)) + reply)
seed("libtpu", "numbers", "20.57\n0-tensorcore: 7\n1-0: 3")
seed("libtpu", "figures", "8MB+-AllReduce, 123.46, 12.00, 90.00, 95.00, 99.90")

page = """# TYPE jax_orbax_write_gbytes gauge
jax_orbax_write_gbytes{a="1\\"2",b="c\\\\d"} 1.5
# TYPE grain_python_x_ns histogram
grain_python_x_ns_bucket{le="1"} 1
grain_python_x_ns_bucket{le="+Inf"} 2
grain_python_x_ns_sum 3
grain_python_x_ns_count 2
# TYPE grain_python_y counter
grain_python_y_total 5
"""
seed("orbax_grain", "two", page + "\0" + page.replace(" 2\n", " 9\n"))

seed("settings", "sections", """[sampler]
interval = "250ms"
history = "8MiB"
[api]
http = "127.0.0.1:4390"
[workload]
endpoints = [{kind = "profiler", address = "127.0.0.1:9012"}]
[[device.extra]]
device = 0x0099
name = "v9"
""")
seed("settings", "flag", "sampler.interval=1s")
seed("http_query", "all", "metric=tpu_hbm_used_bytes&chip=3&last=5m&limit=10")
seed("host_list", "ranges", "tpu-[001-003,010],n[0-1]x[2-3]")

step = '1772323200250000000 {"job_name":"j","step_count":3,"step_start_time":1772323200.25}'
save = (
    '5 {"job_name":"j","event_type":"save","step":3,"directory":"gs://b","checkpoint_manager_blocking_duration_secs":1.5,'
    '"checkpointer_blocking_duration_secs":1,"wait_for_prev_duration_secs":"0","get_old_steps_duration_secs":0}'
)
slices = '5 {"job_name":"j","active_slices":1,"total_slices":2,"available_slices":2,"elastic_slice_counts_timestamp":5.5}'
newer = '5 {"job_name":"j","event":"STEP","step":3,"start_time":"2026-03-01T00:00:00Z","end_time":7}'
seed("marks", "packet", "\n".join(["M1 0af3-41 7", step, save, slices, newer]))
seed("marks", "line", step)

manifest = {
    "version": 1,
    "session": "s",
    "tool": {"name": "tpuscope", "version": "0.1.0"},
    "window": {"start": "2026-11-29T16:20:45Z", "stop": "2026-11-29T16:20:47Z"},
    "hosts": [],
    "missing": [{"host": "h", "why": "w"}],
}
seed("session_files", "manifest", json.dumps(manifest))
web = "tls_server_config:\n  cert_file: a.crt\n  key_file: b.key\n  min_version: TLS12\nrate_limit:\n  interval: 1m30s\n  burst: 20\n"
seed("web_config", "tls", web)
seed("web_config", "headers", "http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
seed("web_config", "users", "basic_auth_users:\n  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze\n")

seed("session_files", "owners", '{"uids": [0, 1000]}')

stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nctxt 1\nbtime 2\nprocesses 3\n"
seed("kernel_texts", "stat", stat)
seed("kernel_texts", "loadavg", "0.35 1.00 0.50 2/500 1234\n")
seed("kernel_texts", "meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\nMemAvailable: 60 kB\nSwapTotal: 9 kB\nSwapFree: 1 kB\n")
device = "  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
seed("kernel_texts", "net", "Inter-| Receive\n face |bytes\n" + device)
seed("kernel_texts", "disks", "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11\n")
seed("kernel_texts", "pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=25\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")

environ = "SLURM_JOB_ID=12\0SLURM_JOB_NODELIST=n[1-2]\0JAX_PROFILER_PORT=9012\0TPU_RUNTIME_METRICS_PORTS=8431,8432\0MASTER_PORT=1\0"
pod = "POD_NAME=a-0-1-x\0JOBSET_NAME=a\0JOB_COMPLETION_INDEX=1\0VBAR_CONTROL_SERVICE_URL=127.0.0.1:8353\0"
tcp = "  sl  local_address\n   0: 0100007F:2334 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7 1 0 100 0 0 10 0\n"
process = "7 (python3) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 10 18446744073709551615 " + "1 " * 27
status = "Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nNSpid:\t7\t1\n"
maps = "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/python3/site-packages/libtpu/libtpu.so\n"
for name, variables, cgroup in (
    ("slurm", environ, "0::/system.slice/slurmstepd.scope/job_12/step_0\n"),
    ("pod", pod, "0::/kubepods.slice/kubepods-pod1234_5678.slice/cri-containerd-a.scope\n"),
):
    seed("process_texts", name, "%".join([variables, tcp, process, status, cgroup, maps]))

function = "%0000:00:05.0%0x1ae0\n%0x0063\n%0x0000\n%0\n"
indices = '%[index]\n"0000:00:04" = 0\n"0000:00:05" = 2\n'
for number, line in enumerate(
    ("CHIPS_PER_HOST_BOUNDS: '2,2,1'", "MACHINE_TYPE: 'ct6e-standard-4t'", "TPU_ACCELERATOR_TYPE: 'v6e-8'")
):
    seed("chip_files", f"host-{number}", line + "\nHOST_BOUNDS: '1,1,1'\n" + indices + function)
seed("pidfd_info", "host", "pos:\t0\nflags:\t02000002\nPid:\t41\nNSpid:\t41\t1\n")
seed("pidfd_info", "ended", "Pid:\t-1\nNSpid:\t-1\n")
