//! Goodput through the command line: the golden vectors, bad input, and the real library beside it.

mod bad_input;
mod field;
pub(crate) mod live;
mod peer;
mod schema;
mod vectors;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fakes::harness::{data, tpuscope};
use goodput::time::Micros;
use serde_json::{Map, Value, value::RawValue};

/// How a command ended.
pub(crate) struct GoodputRun {
    pub(crate) code: Option<i32>,
    stdout: String,
    pub(crate) stderr: String,
}

impl GoodputRun {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// The one line that says what was wrong, after checking the exit code.
    fn complaint(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "stdout {} stderr {}", self.stdout, self.stderr);
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!((1..=2).contains(&lines.len()), "one line and a remedy: {}", self.stderr);
        lines[0]
    }
}

/// Runs `tpuscope goodput` with these arguments.
pub(crate) fn run(args: &[&str]) -> GoodputRun {
    let out = Command::new(tpuscope()).arg("goodput").args(args).stdin(Stdio::null()).output().unwrap();
    GoodputRun {
        code: out.status.code(),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

/// A text file in a folder.
pub(crate) fn file(folder: &Path, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(crate) type Raw = Map<String, Value>;

/// One golden vector; payloads keep the order of their keys.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) job: String,
    pub(crate) lines: Vec<String>,
    pub(crate) cases: Vec<Raw>,
}

pub(crate) fn golden(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(data().join("golden").join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

pub(crate) fn vector(file: &Path) -> Vector {
    let text = fs::read_to_string(file).unwrap();
    let raw: std::collections::BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap();
    let entries: Vec<std::collections::BTreeMap<String, Box<RawValue>>> =
        serde_json::from_str(raw["entries"].get()).unwrap();
    let lines = entries
        .iter()
        .map(|entry| {
            let time: f64 = entry["log_timestamp"].get().parse().unwrap();
            line(time, entry["insert_id"].get(), entry["payload"].get())
        })
        .collect();
    Vector {
        name: file.file_stem().unwrap().to_string_lossy().into_owned(),
        job: serde_json::from_str(raw["job_name"].get()).unwrap(),
        lines,
        cases: serde_json::from_str(raw["cases"].get()).unwrap(),
    }
}

/// A line of an exported log; `id` and `payload` are JSON.
pub(crate) fn line(time: f64, id: &str, payload: &str) -> String {
    let time = Micros::from_seconds(time).unwrap().to_string().replacen(' ', "T", 1);
    format!(r#"{{"timestamp":"{time}","insertId":{id},"jsonPayload":{payload}}}"#)
}

/// Every field of `want` must be in `got`: numbers within 1e-6, all else equal.
pub(crate) fn differences(path: &str, want: &Value, got: &Value, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Number(w), Value::Number(g)) => {
            let (w, g) = (w.as_f64().unwrap(), g.as_f64().unwrap());
            if (w - g).abs() > 1e-6 {
                out.push(format!("{path}: want {w}, got {g}"));
            }
        }
        (Value::Object(w), Value::Object(g)) => {
            for (key, value) in w {
                differences(&format!("{path}.{key}"), value, g.get(key).unwrap_or(&Value::Null), out);
            }
        }
        (Value::Array(w), Value::Array(g)) => {
            if w.len() != g.len() {
                out.push(format!("{path}: want {} items, got {}", w.len(), g.len()));
            }
            for (at, (w, g)) in w.iter().zip(g).enumerate() {
                differences(&format!("{path}[{at}]"), w, g, out);
            }
        }
        (w, g) if w == g => {}
        (w, g) => out.push(format!("{path}: want {w}, got {g}")),
    }
}

pub(crate) fn assert_same(out: &[String]) {
    assert!(out.is_empty(), "{} differences, such as\n{}", out.len(), out[..out.len().min(30)].join("\n"));
}
