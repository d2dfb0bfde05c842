"""What one mark costs in Python, in nanoseconds as JSON. Calls are some time apart, as in a training loop.

    marks_calls.py agent SOCKET COUNT   of the agent on this socket:
        send      the median of a bare `send` of the same bytes on a connected socket
        step      the median of `Recorder.step`, whole
        sink      the median of `GoodputRecorder.record_step_start_time` with the sink
        nothing   the same with a logger that does nothing: what no sink can save
        cpu       CPU time of the process for one mark of the sink
    marks_calls.py library COUNT        of GoodputRecorder with its own logger, in whatever version is on the path; Google's client
                                        writes to a server of this machine, without TLS:
        call      the median of `record_step_start_time`
        cpu       CPU time of the process for one mark, with what the library's thread does for it
"""

import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from concurrent import futures

from ml_goodput_measurement.src import goodput
from tpuscope import marks

PAUSE = 0.0005


def serve(port):
    """Cloud Logging: accepts whatever is written."""
    import grpc

    class Accepts(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), handlers=[Accepts()])
    port.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


def library_recorder(port):
    """The library's recorder with its own logger and Google's own client, which talks to the port."""
    import google.cloud.logging
    import grpc
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.logging_v2 import _gapic
    from google.cloud.logging_v2.services import logging_service_v2
    from google.cloud.logging_v2.services.logging_service_v2 import transports

    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    transport = transports.LoggingServiceV2GrpcTransport(channel=channel)
    client = google.cloud.logging.Client(project="p", credentials=AnonymousCredentials())
    client._logging_api = _gapic._LoggingAPI(logging_service_v2.LoggingServiceV2Client(transport=transport), client)
    google.cloud.logging.Client = lambda: client
    return goodput.GoodputRecorder("bench", "log", True)


def medians(count, *calls):
    """The median of each call; the calls take turns."""
    times = [[] for _ in calls]
    clock = time.perf_counter_ns
    for number in range(count):
        for call, taken in zip(calls, times):
            start = clock()
            call(number)
            taken.append(clock() - start)
            time.sleep(PAUSE)
    return [statistics.median(taken) for taken in times]


def cpu(count, call, flush):
    """CPU time of this process for one call: that of the call itself, and of all other threads until `flush` returns. The
    pauses are not in it: on a busy machine they cost more than the calls, and never the same."""

    def in_this_thread(call):
        start = time.thread_time_ns()
        call()
        return time.thread_time_ns() - start

    def of_others():
        return time.process_time_ns() - time.thread_time_ns()

    before, spent = of_others(), 0
    for number in range(count):
        spent += in_this_thread(lambda: call(number))
        time.sleep(PAUSE)
    spent += in_this_thread(flush)
    return (spent + of_others() - before) / count


class Nothing:
    """A logger that keeps nothing."""

    def write_cloud_logging_entry(self, entry):
        pass

    def flush(self):
        pass


def agent(path, count):
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
    with_nothing = goodput.GoodputRecorder("bench", "log", True, Nothing())

    def step(number):
        with recorder.step(number):
            pass

    calls = (
        lambda number: bare.send(packets[number]),
        step,
        with_sink.record_step_start_time,
        with_nothing.record_step_start_time,
    )
    result = dict(zip(("send", "step", "sink", "nothing"), medians(count, *calls)))
    # All of a mark is in its call.
    result["cpu"] = cpu(count, with_sink.record_step_start_time, lambda: None)
    result["lost"] = recorder.stats().dropped + sink.stats().dropped
    return result


def library(count):
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    recorder = library_recorder(ours.recv())
    flush = getattr(recorder, "flush", lambda: None)
    [call] = medians(count, recorder.record_step_start_time)
    flush()
    result = {"call": call, "cpu": cpu(count, recorder.record_step_start_time, flush)}
    server.kill()
    return result


if __name__ == "__main__":
    what, *arguments, count = sys.argv[1:]
    print(json.dumps({"agent": agent, "library": library}[what](*arguments, int(count))))
