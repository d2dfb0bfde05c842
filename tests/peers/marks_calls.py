"""What one mark costs in Python: marks_calls.py SOCKET COUNT prints medians in nanoseconds as JSON.

    send      a bare `send` of the same bytes on a connected socket of the same agent
    step      `Recorder.step`, whole
    sink      `GoodputRecorder.record_step_start_time` with the sink
    library   the same with the library's own logger, whose client writes to a server of this machine

Calls are some time apart, as in a training loop.
"""

import functools
import http.server
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time

from ml_goodput_measurement.src import goodput
from tpuscope import marks

PAUSE = 0.0005


class Accepts(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def serve(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accepts)
    port.send(server.server_address[1])
    server.serve_forever()


def library_recorder(port):
    """The library's recorder with its own logger and Google's own client, which talks to the port."""
    import google.cloud.logging
    from google.auth.credentials import AnonymousCredentials

    google.cloud.logging.Client = functools.partial(
        google.cloud.logging.Client,
        project="p",
        credentials=AnonymousCredentials(),
        _use_grpc=False,
        client_options={"api_endpoint": f"http://127.0.0.1:{port}"},
    )
    return goodput.GoodputRecorder("bench", "log", True)


def measured(count, *calls):
    """The median of each call in nanoseconds; the calls take turns."""
    times = [[] for _ in calls]
    clock = time.perf_counter_ns
    for number in range(count):
        for call, taken in zip(calls, times):
            start = clock()
            call(number)
            taken.append(clock() - start)
            time.sleep(PAUSE)
    return [statistics.median(taken) for taken in times]


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    bare = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    bare.connect(path)
    header = f"M1 {'a' * 32}-{os.getpid()} ".encode()
    text = b'%d\n%d {"job_name":"bench","step_count":%d,"step_start_time":%.6f}'
    now = time.time_ns()
    # Made beforehand: only the sending is measured.
    packets = [header + text % (number + 1, now, number, now / 1e9) for number in range(count)]
    recorder = marks.Recorder("bench", socket_path=path)
    sink = marks.Sink(socket_path=path)
    with_sink = goodput.GoodputRecorder("bench", "log", True, sink)

    def step(number):
        with recorder.step(number):
            pass

    send, own, through_sink = measured(count, lambda number: bare.send(packets[number]), step, with_sink.record_step_start_time)
    lost = recorder.stats().dropped + sink.stats().dropped
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    library = library_recorder(ours.recv())
    [with_library] = measured(count, library.record_step_start_time)
    library.flush()
    server.kill()
    print(json.dumps({"send": send, "step": own, "sink": through_sink, "library": with_library, "lost": lost}))


if __name__ == "__main__":
    main()
