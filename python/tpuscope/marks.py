"""Marks: what a training program says of itself to the tpuscope agent of its host.

A mark is a small JSON object with a time, such as the start of a step. The agent stores marks, and `tpuscope goodput
--job NAME` computes from them where the job's time went.

    from tpuscope import marks

    recorder = marks.Recorder("my-job", enabled=jax.process_index() == 0)
    with recorder.job():
        for step in range(1000):
            with recorder.data_loading():
                batch = next(batches)
            with recorder.step(step):
                train(batch)

A program that uses ml-goodput-measurement passes a `Sink` to its recorder instead:

    GoodputRecorder("my-job", "goodput_my-job", True, marks.Sink())

No call blocks and none raises. Without an agent, marks wait in a bounded buffer; what has no room there is counted
(`stats`), and the newest mark always has room, so that its number tells the agent of what is missing. Nothing runs in the background: a mark that could not be sent is sent with a later one, or by `flush`.
The wire format is described in docs/python.md of tpuscope. This file needs nothing but Python 3.10 and may be copied.
"""

from __future__ import annotations

import atexit
import enum
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, ContextManager, NamedTuple, Protocol

__all__ = ["CloudLogger", "Event", "Recorder", "Sink", "Stats", "SOCKET", "VARIABLE"]

#: The agent's socket, unless the variable names another one.
SOCKET = "/run/tpuscope/marks.sock"
#: The variable that names the agent's socket.
VARIABLE = "TPUSCOPE_MARKS_SOCKET"

# The memory of what waits for the agent, and what a mark takes beside its text. More is dropped and counted.
_MAX_BYTES = 4 << 20
_OVERHEAD = 128
# Marks of calls that came while another one had the lock.
_MAX_ASIDE = 4096
# The largest mark and the largest packet that the agent accepts.
_MARK_BYTES = 8 << 10
_PACKET_BYTES = 32 << 10
_ALMOST_FULL = _MAX_BYTES - _MARK_BYTES - _OVERHEAD
_PACKET_MARKS = 256
# What is sent in the place of a mark that is too long: the agent counts it as refused.
_TOO_LONG = b"too_long"
# The room of the socket for the last packet of a program that ends while the agent reads slowly.
_LAST_ROOM = 1 << 20
# Packets that one call sends at most.
_PACKETS_PER_CALL = 8
# Every so many marks the answers of the agent are read.
_READ_EVERY = 32
# Seconds between two attempts to connect: the first wait, and the longest.
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 30.0
# Seconds that the end of the process waits at most.
_EXIT_WAIT = 0.3
# Recorders that are gone and whose marks wait for the end of the process.
_MAX_LEFT = 16

_time_ns = time.time_ns


class Stats(NamedTuple):
    """What became of the marks of this process."""

    made: int
    """Marks so far that have a number, whatever became of them: the sum of `stored`, `waiting` and `dropped`."""
    stored: int
    """Marks that the agent has stored or refused."""
    waiting: int
    """Marks that are kept until the agent has stored them."""
    dropped: int
    """Marks that the buffer had no room for. The agent counts them as lost when the next mark arrives."""
    refused: int
    """Marks that the agent refused, such as those over 8 KiB, and calls that made none, such as with a step that is no
    number."""
    last_refusal: str
    """Why the last of them was refused."""


class CloudLogger(Protocol):
    """What `GoodputRecorder` takes as its fourth argument."""

    def write_cloud_logging_entry(self, entry: Any) -> None: ...


class _Sender:
    """The marks of one recorder on their way to the agent.

    Each mark has a number, from 1. The agent acknowledges the highest number that it has stored; what it has not
    acknowledged is kept and sent again over the next connection. A number that is missing tells the agent of a loss.
    """

    __slots__ = (
        "__weakref__", "_aside", "_bytes", "_dropped", "_last_refusal", "_lock", "_missed", "_next_try", "_number",
        "_path", "_prefix", "_refused", "_socket", "_stored", "_unacknowledged", "_unsent", "_wait",
    )

    def __init__(self, path: str | None) -> None:
        self._path = path or os.environ.get(VARIABLE) or SOCKET
        self._socket: socket.socket | None = None
        self._begin()
        _senders.add(self)

    def _begin(self) -> None:
        """Starts as a new recorder: at first, and in the child after a fork, whose parent keeps what waits."""
        connection, self._socket = self._socket, None
        if connection is not None:
            # The parent's connection stays open: only the child's descriptor is closed.
            connection.close()
        self._lock = threading.Lock()
        self._prefix = b"M1 %b-%d " % (secrets.token_hex(16).encode(), os.getpid())
        self._number = 0
        self._aside: deque[bytes] = deque()
        # One item for each mark that found no room even there. Only appending is safe without the lock.
        self._missed: deque[None] = deque()
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._stored = self._dropped = self._refused = 0
        self._last_refusal = ""
        self._next_try, self._wait = 0.0, _FIRST_WAIT

    def add(self, mark: bytes) -> None:
        """Sends a mark, or keeps it. Never blocks: a call that finds the lock taken leaves its mark to the next one."""
        if not self._lock.acquire(False):
            if len(self._aside) < _MAX_ASIDE:
                self._aside.append(mark)
            else:
                self._missed.append(None)
            return
        try:
            size = len(mark)
            if size > _MARK_BYTES or self._bytes > _ALMOST_FULL or self._unsent or self._aside or self._socket is None:
                self._add_slowly(mark)
                return
            self._number = number = self._number + 1
            self._bytes += size + _OVERHEAD
            try:
                self._socket.send(b"%b%d\n%b" % (self._prefix, number, mark))
            except BlockingIOError:
                self._unsent.append((number, mark))
                return
            self._unacknowledged.append((number, mark))
            if not number % _READ_EVERY:
                self._receive()
        except OSError:
            self._keep_last(mark)
            self._disconnect()
        finally:
            self._lock.release()

    def _keep_last(self, mark: bytes) -> None:
        """Keeps a mark that was numbered, and whose sending failed."""
        kept = self._unacknowledged or self._unsent
        if not kept or kept[-1][0] < self._number:
            self._unsent.append((self._number, mark))

    def _add_slowly(self, mark: bytes | None) -> None:
        """Adds what was left aside, then this mark; connects if it is time; sends what fits."""
        # What comes meanwhile waits for the next call. A mark that was missed has a number all the same.
        missed = len(self._missed)
        for _ in range(missed):
            self._missed.popleft()
        self._number += missed
        self._dropped += missed
        for _ in range(len(self._aside)):
            self._keep(self._aside.popleft())
        if mark is not None:
            self._keep(mark)
        if self._socket is None and not self._connect():
            return
        try:
            self._receive()
            self._send_unsent()
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect()

    def _keep(self, mark: bytes) -> None:
        """Keeps a mark under the next number. Where there is no room it takes that of the newest one that was not sent."""
        self._number += 1
        if len(mark) > _MARK_BYTES:
            mark = mark.partition(b" ")[0] + b" " + _TOO_LONG
        if self._bytes > _ALMOST_FULL and self._unsent:
            self._bytes -= len(self._unsent.pop()[1]) + _OVERHEAD
            self._dropped += 1
        self._unsent.append((self._number, mark))
        self._bytes += len(mark) + _OVERHEAD

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._next_try:
            return False
        self._next_try, self._wait = now + self._wait, min(2 * self._wait, _LONGEST_WAIT)
        connection = None
        try:
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.connect(self._path)
        except OSError:
            if connection is not None:
                connection.close()
            return False
        self._socket = connection
        return True

    def _disconnect(self) -> None:
        """Everything that is not acknowledged is sent again over the next connection."""
        connection, self._socket = self._socket, None
        if connection is not None:
            try:
                # Why the agent closed, where an error came before it.
                self._take_answer(connection.recv(512))
            except OSError:
                pass
            connection.close()
        self._unacknowledged.extend(self._unsent)
        self._unsent, self._unacknowledged = self._unacknowledged, deque()
        self._next_try = max(self._next_try, time.monotonic() + _FIRST_WAIT)

    def _send_unsent(self) -> None:
        """Sends marks that wait, many in a packet; numbers in a packet follow each other."""
        connection = self._socket
        if connection is None:
            return
        for _ in range(_PACKETS_PER_CALL):
            # The mark that had no room waits for some.
            if not self._unsent or (len(self._unsent) == 1 and self._bytes > _MAX_BYTES):
                return
            first, size = self._unsent[0][0], len(self._prefix) + 21
            packet: list[bytes] = []
            for number, mark in self._unsent:
                size += len(mark) + 1
                if number != first + len(packet) or size > _PACKET_BYTES or len(packet) == _PACKET_MARKS:
                    break
                packet.append(mark)
            connection.send(b"%b%d\n%b" % (self._prefix, first, b"\n".join(packet)))
            for _ in packet:
                self._unacknowledged.append(self._unsent.popleft())

    def _receive(self) -> None:
        """Reads what the agent says, as far as it is there."""
        while self._socket is not None:
            try:
                answer = self._socket.recv(512)
            except BlockingIOError:
                return
            if not answer:
                self._disconnect()
                return
            self._take_answer(answer)

    def _take_answer(self, answer: bytes) -> None:
        kind, _, rest = answer.partition(b" ")
        if kind == b"A1":
            self._acknowledge(int(rest))
        elif kind == b"R1":
            count, _, reason = rest.partition(b" ")
            self._refused += int(count)
            self._last_refusal = reason.decode("utf-8", "replace")
        elif kind == b"E1":
            self._last_refusal = rest.decode("utf-8", "replace")

    def _acknowledge(self, stored: int) -> None:
        kept = self._unacknowledged
        while kept and kept[0][0] <= stored:
            self._bytes -= len(kept.popleft()[1]) + _OVERHEAD
            self._stored += 1
        # The agent works: after the next loss of the connection, the first attempt is soon.
        self._wait = _FIRST_WAIT

    def flush(self, limit: float, *, until_stored: bool) -> bool:
        """Waits until all marks are sent or stored, at most `limit` seconds, and not without a connection."""
        end = time.monotonic() + limit
        if not self._lock.acquire(timeout=max(0.0, limit)):
            return False
        try:
            while True:
                self._add_slowly(None)
                if not self._unsent and not (until_stored and self._unacknowledged):
                    return True
                if self._socket is None or time.monotonic() >= end:
                    return False
                time.sleep(0.005)
        finally:
            self._lock.release()

    def finish(self, limit: float) -> None:
        """Sends what is not sent, at most `limit` seconds. What is too late is dropped but for the newest mark, whose number
        tells the agent of the others."""
        if self.flush(limit, until_stored=False) or not self._lock.acquire(False):
            return
        try:
            connection, late = self._socket, self._unsent
            if connection is None or not late:
                return
            number, mark = late[-1]
            # More room than the agent has left.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LAST_ROOM)
            connection.send(b"%b%d\n%b" % (self._prefix, number, mark))
            self._dropped += len(late) - 1
            self._bytes -= sum(len(dropped) + _OVERHEAD for _, dropped in late) - len(mark) - _OVERHEAD
            late.clear()
            self._unacknowledged.append((number, mark))
        finally:
            self._lock.release()

    def __del__(self) -> None:
        """The recorder is gone before the end of the program: what waits is sent by then, and nothing blocks here."""
        try:
            if not self.flush(0.0, until_stored=False):
                if len(_left) < _MAX_LEFT:
                    _left.append(self)
                else:
                    self.finish(0.0)
        except Exception:
            # The program goes on, or ends, whatever fails here.
            pass

    def refuse(self, what: str, error: Exception) -> None:
        """Counts a mark that cannot be written as JSON."""
        self._refused += 1
        self._last_refusal = _why(what, error)

    def stats(self) -> Stats:
        aside, missed = len(self._aside), len(self._missed)
        waiting = len(self._unsent) + len(self._unacknowledged) + aside
        made, dropped = self._number + aside + missed, self._dropped + missed
        return Stats(made, self._stored, waiting, dropped, self._refused, self._last_refusal)


def _why(what: str, error: Exception) -> str:
    """The error as a text, also where it has none."""
    try:
        return f"{what}: {error}"
    except Exception:
        return f"{what}: {type(error).__name__}"


_senders: weakref.WeakSet[_Sender] = weakref.WeakSet()
# Those whose recorder is gone, with marks that are not sent yet.
_left: list[_Sender] = []


def _after_fork() -> None:
    _left.clear()
    for sender in list(_senders):
        sender._begin()


def _at_exit() -> None:
    end = time.monotonic() + _EXIT_WAIT
    for sender in [*_left, *_senders]:
        try:
            sender.finish(end - time.monotonic())
        except Exception:
            # The end of a program is not disturbed.
            pass


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _plain(value: Any) -> Any:
    """Numbers of NumPy and JAX as those of Python."""
    return value.item()


def _encoder() -> Callable[[Any], str]:
    """JSON without NaN. Python's encoder in C is called directly: preparing it for each call takes longer than its work."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False, default=_plain)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    try:
        quoted = json.encoder.encode_basestring_ascii
        in_c = make(None, _plain, quoted, None, ":", ",", False, False, False)
        known = {"a": [1, 0.5, None, "\"é"]}
        if "".join(in_c(known, 0)) == encoder.encode(known):
            return lambda value: "".join(in_c(value, 0))
    except Exception:
        # Another Python has another encoder.
        pass
    return encoder.encode


_encode = _encoder()


class Sink:
    """The fourth argument of `GoodputRecorder`: its entries go to the agent, without credentials.

    `also` is a second logger that gets them too, such as the library's own for Cloud Logging. What it raises is
    counted in `also_failed` and does not reach the program.
    """

    def __init__(self, also: CloudLogger | None = None, *, socket_path: str | None = None) -> None:
        self._sender = _Sender(socket_path)
        self._add = self._sender.add
        self._also = also
        self.also_failed = 0

    def write_cloud_logging_entry(self, entry: Any) -> None:
        """Sends one entry. Never raises, and waits for nothing but `also`."""
        try:
            if entry is not None:
                self._add(f"{_time_ns()} {_encode(entry)}".encode())
        except Exception as error:
            self._sender.refuse("not JSON", error)
        if self._also is not None:
            try:
                self._also.write_cloud_logging_entry(entry)
            except Exception:
                self.also_failed += 1

    def flush(self, limit: float = 2.0) -> None:
        """Waits until the agent has stored what was written, at most `limit` seconds; without an agent not at all."""
        try:
            self._sender.flush(limit, until_stored=True)
        except Exception as error:
            self._sender.refuse("flush", error)
        try:
            flush = getattr(self._also, "flush", None)
            if flush is not None:
                flush()
        except Exception:
            self.also_failed += 1

    def stats(self) -> Stats:
        """What became of the entries."""
        return self._sender.stats()


class Event(enum.Enum):
    """The events of `Recorder.record`, under the names of Google's goodput documentation."""

    JOB = "JOB"
    ACCELERATOR_INIT = "ACCELERATOR_INIT"
    TRAINING_PREP = "TRAINING_PREP"
    DATA_LOADING = "DATA_LOADING"
    STEP = "STEP"
    CUSTOM = "CUSTOM"
    CHECKPOINT_SAVE = "CHECKPOINT_SAVE"
    CHECKPOINT_RESTORE = "CHECKPOINT_RESTORE"


class _Nothing:
    """The context manager of a recorder that is not enabled."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class _Span:
    """Marks the start and the end of a block, also of one that raises."""

    __slots__ = ("_end", "_sender", "_start")

    def __init__(self, sender: _Sender, start: bytes, end: bytes) -> None:
        self._sender, self._start, self._end = sender, start, end

    def __enter__(self) -> None:
        now = _time_ns()
        self._sender.add(self._start % (now, now / 1e9))

    def __exit__(self, *_: object) -> None:
        now = _time_ns()
        self._sender.add(self._end % (now, now / 1e9))


class _Step:
    """Marks the start of a step. A step ends when the next one starts."""

    __slots__ = ("_number", "_sender", "_start")

    def __init__(self, sender: _Sender, start: bytes, number: Any) -> None:
        self._sender, self._start, self._number = sender, start, number

    def __enter__(self) -> None:
        now = _time_ns()
        try:
            self._sender.add(self._start % (now, int(self._number), now / 1e9))
        except Exception as error:
            self._sender.refuse("step", error)

    def __exit__(self, *_: object) -> None:
        return None


class _Checkpoint:
    """Marks a checkpoint with its duration at the end of a block, as Orbax logs it."""

    __slots__ = ("_entry", "_kind", "_sender", "_start")

    def __init__(self, sender: _Sender, kind: str, entry: dict[str, Any]) -> None:
        self._sender, self._kind, self._entry = sender, kind, entry
        self._start = 0

    def __enter__(self) -> None:
        self._start = _time_ns()

    def __exit__(self, *_: object) -> None:
        now = _time_ns()
        seconds = max(0, now - self._start) / 1e9
        started = round(self._start / 1e9, 6)
        if self._kind == "save":
            times = {
                "checkpoint_manager_blocking_start_time": started,
                "checkpoint_manager_blocking_duration_secs": seconds,
                "checkpointer_blocking_duration_secs": seconds,
                "wait_for_prev_duration_secs": 0.0,
                "get_old_steps_duration_secs": 0.0,
            }
        else:
            times = {
                "checkpoint_manager_start_time": started,
                "checkpoint_manager_duration_secs": seconds,
                "checkpointer_duration_secs": seconds,
            }
        try:
            self._sender.add(b"%d %b" % (now, _encode(self._entry | times).encode()))
        except Exception as error:
            self._sender.refuse("checkpoint", error)


def _job_of_environment() -> str | None:
    """The job that the environment names, as `tpuscope mark` names it too."""
    get = os.environ.get
    slurm, run = get("SLURM_JOB_ID"), get("TPUSCOPE_JOB_ID")
    return get("TPUSCOPE_JOB_NAME") or (f"slurm:{slurm}" if slurm else f"run:{run}" if run else None)


_NOTHING = _Nothing()
# Names of custom events whose spans are kept for the next use.
_MAX_CUSTOM = 1000


class Recorder:
    """Marks of one job, as context managers.

    `job` is the name of the job, the same in all its restarts: `tpuscope goodput --job NAME` asks for it. Without a
    name it is TPUSCOPE_JOB_NAME, the Slurm job or the job of TPUSCOPE_JOB_ID; without these the agent uses the workload
    that it knows this process to be part of, and refuses the marks if there is none. In a job of several processes one of
    them records: the others pass `enabled=False`.
    """

    def __init__(self, job: str | None = None, *, enabled: bool = True, socket_path: str | None = None) -> None:
        self._sender: _Sender | None = None
        self._name: dict[str, Any] = {}
        # Why nothing is recorded; empty if nothing is wrong.
        self._unusable = ""
        try:
            name = _job_of_environment() if job is None else str(job)
            self._name = {} if name is None else {"job_name": name}
            path = None if socket_path is None else os.fspath(socket_path)
            self._sender = _Sender(path) if enabled else None
        except Exception as error:
            self._unusable = _why("recorder", error)
        self._spans: dict[str, _Span] = {}
        self._custom: dict[str, _Span] = {}
        self._step = self._template('"step_count":%d,"step_start_time":%.6f')
        for event, keys in (
            ("JOB", "job"),
            ("ACCELERATOR_INIT", "tpu_init"),
            ("TRAINING_PREP", "training_prep"),
            ("DATA_LOADING", "data_loading"),
        ):
            if self._sender is not None:
                start, end = (self._template(f'"{keys}_{edge}_time":%.6f') for edge in ("start", "end"))
                self._spans[event] = _Span(self._sender, start, end)

    def _template(self, fields: str) -> bytes:
        """A mark of this job with places for the time in nanoseconds and for values."""
        name = "".join(f'"{key}":{json.dumps(value)},' for key, value in self._name.items())
        return b"%d {" + name.replace("%", "%%").encode() + fields.encode() + b"}"

    def job(self) -> ContextManager[None]:
        """The whole run: marks the start and the end of the job."""
        return self._spans.get("JOB", _NOTHING)

    def accelerator_init(self) -> ContextManager[None]:
        """The start of the devices, such as the first `jax.devices()`."""
        return self._spans.get("ACCELERATOR_INIT", _NOTHING)

    def training_prep(self) -> ContextManager[None]:
        """What comes between the start of the devices and the first step."""
        return self._spans.get("TRAINING_PREP", _NOTHING)

    def data_loading(self) -> ContextManager[None]:
        """The wait for a batch."""
        return self._spans.get("DATA_LOADING", _NOTHING)

    def step(self, number: int) -> ContextManager[None]:
        """One training step. Only its start is marked: it ends when the next step starts."""
        return _NOTHING if self._sender is None else _Step(self._sender, self._step, number)

    def custom(self, name: str) -> ContextManager[None]:
        """Anything else that takes time, such as an evaluation. The ledger counts it by its name."""
        if self._sender is None:
            return _NOTHING
        try:
            return self._custom_span(self._sender, name)
        except Exception as error:
            self._sender.refuse("custom", error)
            return _NOTHING

    def _custom_span(self, sender: _Sender, name: str) -> _Span:
        span = self._custom.get(name)
        if span is None:
            kind = json.dumps(str(name)).replace("%", "%%")
            start, end = (
                self._template(f'"custom_badput_event_type":{kind},"custom_badput_event_{edge}_time":%.6f')
                for edge in ("start", "end")
            )
            span = _Span(sender, start, end)
            if len(self._custom) < _MAX_CUSTOM:
                self._custom[name] = span
        return span

    def checkpoint_save(self, step: int, directory: str = "") -> ContextManager[None]:
        """The time that the program waits for a checkpoint to be written."""
        return self._checkpoint("save", step, directory)

    def checkpoint_restore(self, step: int, directory: str = "") -> ContextManager[None]:
        """The time that the program waits for a checkpoint to be read."""
        return self._checkpoint("restore", step, directory)

    def _checkpoint(self, kind: str, step: int, directory: str) -> ContextManager[None]:
        if self._sender is None:
            return _NOTHING
        try:
            entry = {**self._name, "event_type": kind, "step": step, "directory": str(directory)}
        except Exception as error:
            self._sender.refuse("checkpoint", error)
            return _NOTHING
        return _Checkpoint(self._sender, kind, entry)

    def record(self, event: Event | str, *args: Any) -> ContextManager[None]:
        """The same by the name of the event: `record(Event.STEP, 7)`, `record("CUSTOM", "eval")`. An unknown name or a
        wrong number of arguments is counted as refused."""
        try:
            name = event.value if isinstance(event, Event) else str(event).upper()
            method: Callable[..., ContextManager[None]] = getattr(self, Event(name).value.lower())
            return method(*args)
        except Exception as error:
            if self._sender is not None:
                self._sender.refuse("event", error)
            return _NOTHING

    def flush(self, limit: float = 2.0) -> bool:
        """Waits until the agent has stored all marks, at most `limit` seconds; without an agent not at all. Says
        whether it has."""
        try:
            return self._sender is None or self._sender.flush(limit, until_stored=True)
        except Exception as error:
            if self._sender is not None:
                self._sender.refuse("flush", error)
            return False

    def stats(self) -> Stats:
        """What became of the marks."""
        if self._sender is None:
            return Stats(0, 0, 0, 0, int(bool(self._unusable)), self._unusable)
        return self._sender.stats()
