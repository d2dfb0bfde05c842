//! The real goodput library, asked about entries in memory.

use std::{env, fs, path::PathBuf, process::Command};

use serde_json::{Value, json};

/// The top folder of the workspace.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The folder of the peers.
pub fn peers() -> PathBuf {
    env::var_os("TPUSCOPE_PEERS").map_or_else(|| workspace().join("target/peers"), PathBuf::from)
}

/// The Python of the library.
pub fn python() -> PathBuf {
    peers().join("goodput/bin/python")
}

/// The library's seconds per query, answers and peak memory. Rows are entries with their log time and insert id; the
/// queries are about the whole job at these times.
pub fn ask(rows: &[Value], asked: &[f64]) -> Value {
    let file = env::temp_dir().join(format!("goodput-bench-{}.json", std::process::id()));
    let queries: Vec<Value> = asked.iter().map(|now| json!({ "kind": "cumulative", "now": now })).collect();
    let scenario = json!({ "job_name": "bench", "elastic": false, "entries": rows, "queries": queries });
    fs::write(&file, scenario.to_string()).unwrap();
    let out = Command::new(python())
        .arg(workspace().join("tests/peers/goodput_peer.py"))
        .arg("time")
        .arg(&file)
        .output()
        .expect("the library: run tests/setup.sh");
    fs::remove_file(&file).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}
