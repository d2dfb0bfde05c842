"""Programs that mark, for the tests of the marks socket. Each prints one line of JSON.

    marks_peer.py record SOCKET JOB           a job of GoodputRecorder with the sink, in whatever version is on the path
    marks_peer.py random SOCKET FIRST COUNT   random jobs through the sink; one line each, with what the library's own
                                              calculator says of the same entries
    marks_peer.py steps SOCKET JOB COUNT PAUSE   a recorder that marks COUNT steps, PAUSE seconds apart; a line first says
                                              that it begins, and input must come before the last step
    marks_peer.py fork SOCKET JOB             a recorder that goes on in parent and child
    marks_peer.py flood SOCKET JOB            steps as fast as Python can make them, until some are dropped
    marks_peer.py burst SOCKET JOB            steps for which there is no room, then what waits for them; the program ends
                                              while more of them wait
    marks_peer.py shapes SOCKET JOB           every context manager once, and what must not raise
"""

import datetime
import json
import os
import resource
import sys
import threading
import time

from tpuscope import marks

UTC = datetime.timezone.utc


def say(value):
    print(json.dumps(value), flush=True)


def stats(recorder):
    return recorder.stats()._asdict()


class Log:
    """What Cloud Logging would have: the second logger of the sink."""

    def __init__(self):
        self.entries = []

    def write_cloud_logging_entry(self, entry):
        row = {"log_timestamp": time.time(), "insert_id": "%08d" % len(self.entries), "payload": dict(entry)}
        self.entries.append(row)

    def flush(self):
        raise RuntimeError("must not reach the program")


def record(path, job):
    from ml_goodput_measurement.src import goodput

    log = Log()
    sink = marks.Sink(log, socket_path=path)
    recorder = goodput.GoodputRecorder(job, "log", True, sink)
    began = datetime.datetime.now(UTC).replace(microsecond=0) - datetime.timedelta(seconds=100)
    # Before 0.0.7 a time without a zone is meant.
    at = lambda seconds: began + datetime.timedelta(seconds=seconds)
    recorder.record_job_start_time(at(0))
    recorder.record_tpu_init_start_time(at(1))
    recorder.record_tpu_init_end_time(at(5))
    recorder.record_training_preparation_start_time(at(5))
    recorder.record_training_preparation_end_time(at(9))
    recorder.record_data_loading_start_time(at(9))
    recorder.record_data_loading_end_time(at(10))
    for step in range(20):
        recorder.record_step_start_time(step, at(10 + 2 * step + (3 if step else 0)))
    if hasattr(recorder, "record_custom_badput_event_start_time"):
        recorder.record_custom_badput_event_start_time(at(52), "eval")
        recorder.record_custom_badput_event_end_time(at(53), "eval")
    recorder.record_step_start_time(20, at(56))
    # Without a time: the recorder takes the present.
    recorder.record_step_start_time(21)
    recorder.record_job_end_time(at(60))
    # It calls the sink's own only from 0.2.0 on.
    getattr(recorder, "flush", sink.flush)()
    sink.flush()
    say({"entries": log.entries, "stats": stats(sink), "also_failed": sink.also_failed})


def random_jobs(path, first, count):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.argv = ["goodput_peer.py", "random", "0", "0"]
    import shutil
    import tempfile

    import goodput_peer

    scratch = tempfile.mkdtemp()
    try:
        for seed in range(first, first + count):
            say(random_job(goodput_peer, path, seed, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_sound(payload):
    """Whether the agent takes it: a value that makes the library fail is refused."""
    if payload.get("event_type") not in ("save", "restore", "emergency_restore"):
        return True
    needed = [key for key in payload if key.endswith("_secs") and not key.startswith("broadcast")]
    return "directory" in payload and len(needed) >= 2 and all(payload[key] is not None for key in needed)


def random_job(peer, path, seed, scratch):
    scenario = peer.Scenario(seed)
    log = Log()
    sink = marks.Sink(log, socket_path=path)
    # The job ends now.
    shift = time.time() - scenario.t
    job = "marked-%d" % seed
    for _, payload in scenario.rows:
        moved = {
            key: value + shift if key.endswith(("_time", "timestamp")) and isinstance(value, float) else value
            for key, value in payload.items()
        }
        moved["job_name"] = job
        if is_sound(moved):
            sink.write_cloud_logging_entry(moved)
    sink.flush(20)
    now = time.time() + 1
    queries = [{"kind": "cumulative", "now": now}]
    for _ in range(3):
        start = now - (scenario.t - scenario.begin) * scenario.r.random() - 1
        queries.append({"kind": "interval", "start": start, "end": now})
    asker = peer.Asker({"job_name": job, "elastic": scenario.elastic, "entries": log.entries}, scratch)
    outputs = [asker.ask(query) for query in queries]
    elastic = scenario.elastic
    return {"job": job, "elastic": elastic, "queries": queries, "outputs": outputs, "stats": stats(sink)}


def steps(path, job, count, pause):
    recorder = marks.Recorder(job, socket_path=path)
    with recorder.job():
        for step in range(count):
            with recorder.step(step):
                if step == 0:
                    say("begun")
                if step == count - 1:
                    sys.stdin.readline()
                time.sleep(pause)
    deadline = time.monotonic() + 60
    while not recorder.flush() and time.monotonic() < deadline:
        time.sleep(0.1)
    say(stats(recorder))


def fork(path, job):
    recorder = marks.Recorder(job, socket_path=path)
    with recorder.step(0):
        pass
    child = os.fork()
    base = 100 if child == 0 else 200
    for step in range(base, base + 10):
        with recorder.step(step):
            pass
    stored = recorder.flush(20)
    if child == 0:
        os._exit(0 if stored else 1)
    _, status = os.waitpid(child, 0)
    say({"child": os.waitstatus_to_exitcode(status), "stored": stored, "stats": stats(recorder)})


def flood(path, job):
    recorder = marks.Recorder(job, socket_path=path)
    with recorder.step(0):
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    number, deadline = 1, time.monotonic() + 100
    while recorder.stats().dropped < 1000 and time.monotonic() < deadline:
        for _ in range(100):
            with recorder.step(number):
                pass
            number += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    dropped = recorder.stats().dropped
    # The buffer empties at the rate of the quota; the next mark shows what is missing.
    deadline = time.monotonic() + 100
    while recorder.stats().waiting > 0 and time.monotonic() < deadline:
        recorder.flush(1)
    with recorder.step(number):
        pass
    recorder.flush(20)
    say({"grown_kib": grown, "dropped": dropped, "stats": stats(recorder)})


def shapes(path, job):
    recorder = marks.Recorder(job, socket_path=path)
    with recorder.job():
        with recorder.accelerator_init():
            pass
        with recorder.training_prep(), recorder.checkpoint_restore(4, "gs://bucket/run"):
            pass
        for step in range(5, 8):
            with recorder.data_loading():
                pass
            with recorder.record(marks.Event.STEP, step):
                time.sleep(0.001)
        with recorder.custom("50 % \"é\"\n"):
            pass
        with recorder.record("checkpoint_save", 7, "gs://bucket/run"):
            pass
        try:
            with recorder.data_loading():
                raise StopIteration
        except StopIteration:
            pass
    made = recorder.stats().made
    # None of these raises; each is counted.
    for bad in ("x", None, float("nan"), float("inf"), [1]):
        with recorder.step(bad):
            pass
    with recorder.record("no such event"), recorder.record(marks.Event.STEP):
        pass
    with recorder.checkpoint_save(float("nan")):
        pass
    with recorder.checkpoint_save(object()):
        pass
    with recorder.step(2**63), recorder.step(-1):
        pass
    with recorder.custom([]), recorder.custom({}), recorder.custom(NoText()), recorder.checkpoint_save(1, NoText()):
        pass
    nameless = marks.Recorder(NoText(), socket_path=path)
    with nameless.job(), nameless.step(1), nameless.custom("a"), nameless.checkpoint_save(1):
        pass
    sink = marks.Sink(socket_path=path)
    circle = {}
    circle["circle"] = circle
    bad_entries = [None, 7, "x", {"a": object()}, {"a": float("nan")}, {1: 2}, circle, {"job_name": 7}, {"x": "y" * 9000}]
    for entry in bad_entries:
        sink.write_cloud_logging_entry(entry)
    off = marks.Recorder(job, enabled=False, socket_path=path)
    with off.job(), off.step(1), off.custom("a"), off.checkpoint_save(1), off.record("STEP", 1):
        pass
    threads = [threading.Thread(target=lambda: many(recorder)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = recorder.flush(20)
    sink.flush(20)
    say({"made": made, "stored": stored, "stats": stats(recorder), "sink": stats(sink), "off": stats(off),
         "nameless": stats(nameless)})


class NoText:
    """Neither it nor what it raises can be shown."""

    def __str__(self):
        raise NoTextError


class NoTextError(Exception):
    def __str__(self):
        raise RuntimeError("must not reach the program")


def burst(path, job):
    recorder = marks.Recorder(job, socket_path=path)
    mark = lambda first, count: [recorder.step(number).__enter__() for number in range(first, first + count)]
    mark(0, 40000)
    say("made")
    deadline = time.monotonic() + 100
    while not recorder.flush() and time.monotonic() < deadline:
        pass
    flushed = stats(recorder)
    # Another thread has the lock, and leaves room for two.
    marks._MAX_ASIDE = 2
    with recorder._sender._lock:
        mark(40000, 5)
    mark(40005, 1)
    recorder.flush(20)
    say({"flushed": flushed, "contended": stats(recorder)})
    mark(40006, 30000)
    say({"made": recorder.stats().made})


def many(recorder):
    for _ in range(50):
        with recorder.custom("thread"):
            pass


def main():
    what, path, *rest = sys.argv[1:]
    if what == "record":
        record(path, rest[0])
    elif what == "random":
        random_jobs(path, int(rest[0]), int(rest[1]))
    elif what == "steps":
        steps(path, rest[0], int(rest[1]), float(rest[2]))
    elif what == "fork":
        fork(path, rest[0])
    elif what == "flood":
        flood(path, rest[0])
    elif what == "burst":
        burst(path, rest[0])
    else:
        shapes(path, rest[0])


if __name__ == "__main__":
    main()
