"""Writes seed corpora from the golden vectors: fuzz/corpus/log, fuzz/corpus/split and fuzz/corpus/slots."""

import datetime
import json
import pathlib

here = pathlib.Path(__file__).parent
golden = here / "../../tests/data/golden"
for name in ("log", "slots", "split"):
    (here / "corpus" / name).mkdir(parents=True, exist_ok=True)

for file in sorted((golden / "goodput").glob("*.json")):
    vector = json.loads(file.read_text())
    lines = [json.dumps([case["query"] for case in vector["cases"]])]
    for entry in vector["entries"][:120]:
        time = datetime.datetime.fromtimestamp(entry["log_timestamp"], datetime.timezone.utc)
        payload = {**entry["payload"], "job_name": "j"}
        lines.append(json.dumps(
            {"timestamp": time.isoformat(), "insertId": entry["insert_id"], "jsonPayload": payload}
        ))
    (here / "corpus/log" / file.stem).write_text("\n".join(lines))
    (here / "corpus/split" / file.stem).write_text("\x40" + "\n".join(lines[1:40]))
    (here / "corpus/split" / (file.stem + "_array")).write_text("\x40[" + ",\n".join(lines[1:40]) + "]")

for file in sorted((golden / "proxy").glob("*.json")):
    (here / "corpus/slots" / file.stem).write_text(json.dumps(json.loads(file.read_text())["trace"]))
