"""Asks the real ml-goodput-measurement about random event logs.

    goodput_peer.py random FIRST COUNT    one JSON line for each seed: the log, queries, the library's outputs
    goodput_peer.py time FILE             FILE is such a line without outputs: prints {"seconds": [...]} per query

The log is kept in memory and read by the rule that the library's filter states; time stands where a query's
`now` says. Nothing here computes goodput.
"""

import datetime
import json
import logging
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import types

logging.disable(logging.CRITICAL)

from ml_goodput_measurement.src import goodput, goodput_elastic, goodput_exclusion, goodput_utils, monitoring

UTC = datetime.timezone.utc
NOW = [None]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW[0]


for module in (goodput, goodput_exclusion):
    module.datetime = types.SimpleNamespace(
        datetime=Clock, timedelta=datetime.timedelta, timezone=datetime.timezone
    )


def instant(seconds):
    return datetime.datetime.fromtimestamp(seconds, UTC)


class MemoryLog:
    """The part of the library's logger that reads, over entries in memory."""

    def __init__(self, entries):
        rows = [(instant(e["log_timestamp"]), e["insert_id"], e["payload"]) for e in entries]
        self.rows = sorted(rows, key=lambda row: row[:2])
        self.job_start_time = None
        self.retention_period = datetime.timedelta(days=7)

    def read_cloud_logging_entries(self, start_time=None, end_time=None, last_entry_info=None):
        end = end_time or NOW[0]
        if last_entry_info:
            last, last_id = last_entry_info
            after = lambda t, i: t > last or (t == last and i > last_id) if last_id else t > last
        elif start_time is not None:
            after = lambda t, i: t > start_time
        elif self.job_start_time is not None:
            after = lambda t, i: t > self.job_start_time - datetime.timedelta(seconds=10)
        else:
            after = lambda t, i: t > end - self.retention_period
        rows = [row for row in self.rows if row[0] <= end and after(row[0], row[1])]
        for _, _, payload in rows:
            if self.job_start_time is None and "job_start_time" in payload:
                self.job_start_time = instant(payload["job_start_time"])
        return [dict(row[2]) for row in rows], (rows[-1][:2] if rows else (None, None))


def badput(buckets):
    return {t.name: (dict(v) if isinstance(v, dict) else float(v)) for t, v in buckets.items()}


class Sender:
    def __init__(self):
        self.series = []

    def send_metrics(self, metrics, context=None):
        for m in metrics:
            self.series.append({
                "type": m["metric_type"],
                "value_field": m["value_type"].value,
                "value": float(m["value"]) if m["value_type"].name == "DOUBLE" else int(m["value"]),
                "labels": m.get("metric_labels", {}),
                "resource_type": m["resource_type"],
                "resource_labels": m["resource_labels"],
            })


class Writer:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step, display_name=None):
        self.scalars.append([tag, float(value), int(step)])

    def flush(self):
        pass


class Asker:
    def __init__(self, scenario, scratch):
        self.scenario, self.scratch, self.calculator = scenario, scratch, None
        options = goodput_utils.GCPOptions(location="us-central1-a", acc_type="TPU-v6e")
        self.config = {
            "gcp_options": options,
            "job_name": scenario["job_name"],
            "include_slice_efficiency": scenario["elastic"],
        }

    def fresh(self):
        kind = goodput_elastic.ElasticGoodputCalculator if self.scenario["elastic"] else goodput.GoodputCalculator
        cache = tempfile.mkdtemp(dir=self.scratch)
        log = MemoryLog(self.scenario["entries"])
        self.calculator = kind(self.scenario["job_name"], "log", cloud_logger=log, cache_dir=cache)

    def ask(self, query):
        if self.calculator is None or not query.get("reuse_calculator"):
            self.fresh()
        NOW[0] = instant(query.get("now", query.get("end")))
        return getattr(self, query["kind"])(query)

    def cumulative(self, query):
        try:
            answer = self.calculator.get_job_goodput(True, query.get("ideal_step_time"))
        except Exception as error:
            return failed(error)
        out = {"goodput_percent": answer[0], "badput_percent": badput(answer[1]), "returned_step": answer[2]}
        self.details(out)
        writer = Writer()
        monitoring._upload_goodput_metrics_to_tensorboard(writer, answer[0], answer[1], answer[2], True)
        out["tensorboard_scalars"] = writer.scalars
        return out

    def exclusions(self, query):
        spans = [(instant(a), instant(b)) for a, b in query["exclude"]]
        try:
            answer = self.calculator.get_job_goodput_with_exclusions(spans, True, query.get("ideal_step_time"))
        except Exception as error:
            return failed(error)
        out = {
            "goodput_percent": answer[0],
            "badput_percent": badput(answer[1]),
            "returned_step": answer[2],
            "returned_excluded_seconds": answer[3],
        }
        self.details(out)
        return out

    def details(self, out):
        details = self.calculator.get_job_goodput_details()
        info = self.calculator._goodput_cache.get_goodput_info()
        deviations = details["step_time_deviation"]
        mode = goodput_utils.MonitoringWindowType
        baseline = goodput_utils.compute_step_deviation_from_baseline
        out.update({
            "total_elapsed_seconds": details["total_elapsed_time"],
            "productive_seconds": details["goodput_time"].get(goodput_utils.GoodputType.TOTAL, 0.0),
            "unproductive_seconds": badput(details["badput_time"]),
            "max_productive_step": details["max_productive_step"],
            "last_recorded_step": info.last_recorded_step if info else 0,
            "disruptions": details["disruption_count"],
            "excluded_seconds": info.total_excluded_time if info else 0.0,
            "ideal_step_time": float(details["ideal_step_time"]),
            "step_deviations": [[k, float(v)] for k, v in deviations.items()],
            "step_deviation_from_baseline": {
                "cumulative": float(baseline(deviations, mode.CUMULATIVE)),
                "interval": float(baseline(deviations, mode.INTERVAL)),
            },
            "step_deviation_mean": sum(deviations.values()) / len(deviations) if deviations else None,
        })
        for key in ("stepping_slice_efficiency", "available_slice_efficiency"):
            if key in details:
                out[key] = details[key]
        sender = Sender()
        monitoring._upload_goodput_metrics_to_gcm(sender, details, self.config)
        out["cloud_monitoring_series"] = sender.series

    def interval(self, query):
        start, end = instant(query["start"]), instant(query["end"])
        calculator = self.calculator
        try:
            answer = calculator.get_job_goodput_interval(start, end)
            out = {
                "goodput_percent": answer[0],
                "badput_percent": badput(answer[1]),
                "returned_step": answer[2],
                "total_seconds": answer[3],
                "disruptions": answer[4],
                "effective_start": calculator._interval_start_time.timestamp(),
                "effective_end": calculator._interval_end_time.timestamp(),
            }
        except Exception as error:
            out = failed(error)
        if query.get("reuse_calculator"):
            return out
        try:
            details = calculator.get_interval_metric_details(start, end)
        except Exception:
            out["details_failed"] = True
            return out
        out["interval_size_seconds"] = details["interval_size"]
        for key in ("stepping_slice_efficiency", "available_slice_efficiency"):
            if key in details:
                out[key] = details[key]
        sender = Sender()
        monitoring._upload_interval_goodput_metrics_to_gcm(sender, details, self.config)
        out["cloud_monitoring_series"] = sender.series
        return out


def failed(error):
    return {"error": type(error).__name__, "message": str(error)}


class Scenario:
    """A random job: attempts, phases, steps, and everything that goes wrong."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.t = 1772323200.0 + self.r.randrange(10**6)
        self.begin = self.t
        self.rows, self.elastic = [], self.r.random() < 0.25
        self.job = "job-%d" % seed
        self.skew = 0.0
        step, largest = self.r.choice([0, 0, 0, 1, 100]), 0
        for attempt in range(self.r.choice([1, 1, 2, 2, 3, 5])):
            self.startup(attempt)
            step, largest = self.train(step, largest)
            step = max(0, self.r.choice([step + 1, step, step - 3, step - 7, 0, largest + 1]))
            self.t += self.r.uniform(0, 60)
        if self.r.random() < 0.5:
            self.log({"job_end_time": self.t})
        if self.r.random() < 0.1:
            self.log({"job_end_time": self.t - self.r.uniform(0, 50)})
        self.trouble()

    def log(self, payload, at=None):
        at = self.t if at is None else at
        payload = {k: round(v + self.skew, 6) if k.endswith(("_time", "timestamp")) and isinstance(v, float) else v
                   for k, v in payload.items()}
        self.rows.append([round(at + self.skew, 6), {"job_name": self.job, **payload}])

    def span(self, name, low, high, keep=0.93):
        if self.r.random() < keep:
            self.log({name + "_start_time": self.t})
        self.t += self.r.uniform(low, high)
        if self.r.random() < keep:
            self.log({name + "_end_time": self.t})

    def startup(self, attempt):
        r = self.r
        if r.random() < (0.95 if attempt == 0 else 0.75):
            self.log({"job_start_time": self.t})
        self.t += r.uniform(0, 2)
        reinit = self.elastic and attempt > 0 and r.random() < 0.7
        if reinit:
            self.log({"elastic_reinit_start_time": self.t})
        if r.random() < 0.8:
            self.span("tpu_init", -0.5, 20)
        if r.random() < 0.8:
            self.span("training_prep", 0, 20)
        if reinit:
            self.log({"elastic_reinit_end_time": self.t})
        if r.random() < 0.7:
            self.span("data_loading", 0, 10)
        if r.random() < 0.3:
            self.checkpoint("restore" if r.random() < 0.7 else "emergency_restore")

    def train(self, step, largest):
        r = self.r
        usual = r.choice([0.3, 1.0, 2.0, 5.0])
        count = r.choice([0, 1, 2, 5, 15, 30, 30, 60, 130 if r.random() < 0.3 else 40])
        if r.random() < 0.01:
            count = 1300
        first, double = True, r.random() < 0.1
        for _ in range(count):
            if r.random() > 0.01:
                self.log({"step_count": step, "step_start_time": self.t})
            if r.random() < 0.01 or (double and r.random() < 0.9):
                self.log({"step_count": step, "step_start_time": self.t + 0.01}, self.t + 0.01)
            self.t += usual * (r.uniform(3, 8) if first else r.lognormvariate(0, 0.1))
            first = False
            self.inside()
            largest = max(largest, step)
            step += 1
        return step - 1 if count else step, largest

    def inside(self):
        r = self.r
        if r.random() < 0.04:
            kind = r.choice(["eval", "EVAL", "sdc check", "x"])
            key = "custom_badput_event"
            began = self.t - (r.uniform(0, 4) if r.random() < 0.2 else 0)
            if r.random() < 0.95:
                self.log({key + "_type": kind, key + "_start_time": began})
            self.t += r.uniform(0, 3)
            if r.random() < 0.95:
                self.log({key + "_type": kind, key + "_end_time": self.t})
            self.t += r.uniform(0, 0.5)
        if r.random() < 0.03:
            self.span("data_loading", 0, 3)
        if r.random() < 0.04:
            self.checkpoint("save")
        if r.random() < 0.005:
            self.skew += r.uniform(-6, 2)
        if self.elastic and r.random() < 0.06:
            total = r.choice([0, 2, 4])
            self.log({"active_slices": r.randint(0, 4), "total_slices": total, "available_slices": r.randint(0, 4),
                      "elastic_slice_counts_timestamp": self.t})
        if self.elastic and r.random() < 0.03:
            kind = r.choice(["slice_down", "pod_SCALE_UP", None])
            extra = {} if kind is None else {"elastic_wait_event_type": kind}
            self.log({**extra, "elastic_wait_start_time": self.t})
            self.t += r.uniform(0, 10)
            if r.random() < 0.9:
                self.log({**extra, "elastic_wait_end_time": self.t})

    def checkpoint(self, kind):
        r = self.r
        number = lambda: (str(r.uniform(0, 2)) if r.random() < 0.1 else round(r.uniform(0, 2), 6))
        step = r.choice([1, 2, 3, "4", 5.0])
        place = r.choice(["gs://bucket/run", "/local/run"])
        for _ in range(r.choice([1, 1, 2])):
            entry = {"event_type": kind, "step": step, "directory": place, "synchronous": False}
            if kind == "save":
                for name in ("checkpoint_manager_blocking", "checkpointer_blocking", "wait_for_prev", "get_old_steps"):
                    entry[name + "_start_time"] = self.t
                    entry[name + "_duration_secs"] = number()
            else:
                entry["checkpoint_manager_start_time"] = self.t
                entry["checkpoint_manager_duration_secs"] = number()
                entry["checkpointer_start_time"] = None if r.random() < 0.1 else self.t
                entry["checkpointer_duration_secs"] = number()
                entry["broadcast_duration_secs"] = r.choice([None, 0.5, 0])
            if r.random() < 0.02:
                key = r.choice(list(entry))
                entry[key] = None if r.random() < 0.5 and key != "directory" else entry[key]
                if r.random() < 0.5:
                    del entry[key]
            self.log(entry)
            self.t += r.uniform(0, 0.2)
        self.t += r.uniform(0, 2)

    def trouble(self):
        r = self.r
        if r.random() < 0.2:
            for row in r.sample(self.rows, max(1, len(self.rows) // 30)):
                row[0] += r.uniform(-8, 8)
        if r.random() < 0.1:
            self.rows += [[row[0], dict(row[1])] for row in r.sample(self.rows, max(1, len(self.rows) // 30))]
        if r.random() < 0.05:
            r.choice(self.rows)[1]["unknown_key"] = [1, {"a": None}]

    def queries(self):
        r = self.r
        length = self.t - self.begin
        at = lambda low=-0.05, high=1.2: round(self.begin + length * r.uniform(low, high), r.choice([0, 3, 6]))
        kind = r.random()
        out = []
        if kind < 0.35:
            end = at(0.9, 1.5)
            out.append({"kind": "cumulative", "now": end})
            if r.random() < 0.3:
                out[0]["ideal_step_time"] = r.choice([1.5, 0.5])
            if r.random() < 0.1:
                out[0]["now"] += 86400 * r.choice([6.9999, 7.0001, 9])
            for _ in range(2):
                a, b = sorted((at(), at()))
                out.append({"kind": "interval", "start": a, "end": b, "now": b})
            spans = [[at(), at()] for _ in range(r.randrange(4))]
            out.append({"kind": "exclusions", "now": end, "exclude": spans})
        else:
            now, span = at(0, 0.5), length * r.uniform(0.1, 0.8)
            for n in range(r.randint(3, 7)):
                which = r.random()
                if which < 0.5 or kind < 0.6:
                    query = {"kind": "cumulative", "now": now}
                    if r.random() < 0.15:
                        query["ideal_step_time"] = r.choice([1.5, 0.5])
                elif which < 0.92:
                    query = {"kind": "interval", "start": round(now - span, 3), "end": now, "now": now}
                else:
                    query = {"kind": "exclusions", "now": now, "exclude": [sorted((at(), at()))]}
                out.append({**query, "reuse_calculator": True})
                if r.random() < 0.8:
                    now = round(now + length * r.uniform(0, 0.3), 3)
                elif r.random() < 0.3:
                    now = at(0, 1)
        return out

    def scenario(self):
        names = ["%08x" % self.r.getrandbits(32) for _ in self.rows]
        entries = [
            {"log_timestamp": round(row[0], 6), "insert_id": name, "payload": row[1]}
            for row, name in zip(self.rows, names)
        ]
        return {"job_name": self.job, "elastic": self.elastic, "entries": entries, "queries": self.queries()}


def main():
    # The library keeps its cache in files: memory is the fastest place for them.
    scratch = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        if sys.argv[1] == "random":
            first, count = map(int, sys.argv[2:4])
            for seed in range(first, first + count):
                scenario = Scenario(seed).scenario()
                asker = Asker(scenario, scratch)
                scenario["outputs"] = [asker.ask(query) for query in scenario["queries"]]
                print(json.dumps({"seed": seed, **scenario}), flush=True)
                for name in os.listdir(scratch):
                    shutil.rmtree(os.path.join(scratch, name))
        else:
            with open(sys.argv[2]) as file:
                scenario = json.load(file)
            seconds, asker, goodput_percent = [], Asker(scenario, scratch), []
            asker.fresh()
            for query in scenario["queries"]:
                NOW[0] = instant(query["now"])
                began = time.perf_counter()
                answer = asker.calculator.get_job_goodput(True)
                seconds.append(time.perf_counter() - began)
                goodput_percent.append(answer[0])
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(json.dumps({"seconds": seconds, "goodput_percent": goodput_percent, "peak_kib": peak}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
