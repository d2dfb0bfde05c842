"""Reads event files as TensorBoard does, and prints what it finds as one JSON object: run, then tag, then steps and values.

    tensorboard_peer.py files LOGDIR     with EventAccumulator
    tensorboard_peer.py server LOGDIR    with the web server: what its page asks for
"""

import json
import sys
import time
import urllib.parse
import urllib.request

LIMIT = 60


def of_files(logdir):
    from tensorboard.backend.event_processing import event_multiplexer

    everything = {"scalars": 0, "tensors": 0}
    multiplexer = event_multiplexer.EventMultiplexer(size_guidance=everything)
    multiplexer.AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    found = {}
    for run, tags in multiplexer.Runs().items():
        found[run] = {
            tag: [[event.step, event.value, event.wall_time] for event in multiplexer.Scalars(run, tag)]
            for tag in tags["scalars"]
        }
    return found


def of_server(logdir):
    from tensorboard import program

    board = program.TensorBoard()
    board.configure(argv=["tensorboard", "--logdir", logdir, "--host", "127.0.0.1", "--port", "0"])
    address = board.launch()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path, **query):
        url = f"{address}data/{path}?{urllib.parse.urlencode(query)}"
        with opener.open(url, timeout=LIMIT) as answer:
            return json.load(answer)

    # The server reads in the background.
    deadline = time.monotonic() + LIMIT
    while not (tags := ask("plugin/scalars/tags")) and time.monotonic() < deadline:
        time.sleep(0.1)
    return {
        run: {
            tag: [[step, value, wall] for wall, step, value in ask("plugin/scalars/scalars", run=run, tag=tag)]
            for tag in of_run
        }
        for run, of_run in tags.items()
    }


def main():
    how, logdir = sys.argv[1:]
    print(json.dumps({"files": of_files, "server": of_server}[how](logdir)), flush=True)


if __name__ == "__main__":
    main()
