//! Bad input: one clear line, the documented exit code, bounded memory.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use fakes::harness::tpuscope;

use super::{file, golden, line, run, vector};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const BAD_INPUT: i32 = 8;
const TOO_LARGE: i32 = 16;

const START: f64 = 1_772_323_200.0;

/// A small sound log.
fn sound() -> Vec<String> {
    let mut lines = vec![line(START, "\"a\"", &format!(r#"{{"job_name":"j","job_start_time":{START:?}}}"#))];
    for step in 0..10 {
        let at = START + f64::from(step) * 2.0;
        let payload = format!(r#"{{"job_name":"j","step_count":{step},"step_start_time":{at:?}}}"#);
        lines.push(line(at, &format!("\"s{step}\""), &payload));
    }
    lines
}

fn asked<'a>(log: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--from-log", log, "--job", "j", "--now", "1772323220"], more].concat()
}

#[test]
fn a_query_before_the_log_is_told_that_its_time_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let log = file(folder.path(), "log", sound().join("\n"));
    for strict in [&[][..], &["--strict"]] {
        let early = [&["--from-log", &log, "--job", "j", "--now", "1772323100"], strict].concat();
        let ended = run(&early);
        ended.complaint(BAD_INPUT);
        let remedy = "the job's first entry is of 2026-03-01 00:00:00+00:00: check that --now is after it";
        assert!(ended.stderr.contains(remedy) && !ended.stderr.contains("try --strict"), "{}", ended.stderr);
    }
}

#[test]
fn files_that_are_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let utf16: Vec<u8> = sound().join("\n").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&[u8], &str); 12] = [
        (b"", "empty"),
        (b" \n\n\t\n", "empty"),
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (&utf16, "UTF-16"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"hello", "begins with neither"),
        (b"\x7fELF\0\0", "begins with neither"),
        (b"[1, 2]", "something else than log entries"),
        (b"---\ninsertId: a\n", "YAML, not JSON"),
        (b"[] []", "after the end of the array"),
    ];
    for (text, complaint) in cases {
        let log = file(folder.path(), "log", text);
        let ended = run(&asked(&log, &["--json"]));
        let got = ended.complaint(BAD_INPUT);
        assert!(got.contains(complaint) && got.contains("line "), "{complaint}: {got}");
    }
    let missing = folder.path().join("missing");
    run(&asked(missing.to_str().unwrap(), &[])).complaint(NOT_FOUND);
    run(&asked(folder.path().to_str().unwrap(), &[])).complaint(BAD_INPUT);
    let log = file(folder.path(), "log", "{\"jsonPayload\":{\"job_name\":\"k\"}}\n{}\n");
    assert!(run(&asked(&log, &[])).complaint(NOT_FOUND).contains("among 2 entries"));
    let log = file(folder.path(), "log", "[]");
    run(&asked(&log, &[])).complaint(NOT_FOUND);
}

#[test]
fn damaged_lines_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let broken: [&[u8]; 6] = [
        br#"{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{"job_name":"j","job_start_time":NaN}}"#,
        br#"{"timestamp":"yesterday","jsonPayload":{"job_name":"j"}}"#,
        br#"{"jsonPayload":{"job_name":"j"}}"#,
        br#"{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{"job_name":"j","#,
        b"{\"timestamp\":\"2026-03-01T00:00:00Z\",\"jsonPayload\":{\"job_name\":\"j\",\"custom_badput_event_type\":\"\xff\"}}",
        br#"{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{"job_name":"j","step_start_time":1e999}}"#,
    ];
    for text in broken {
        let mut log = sound().join("\n").into_bytes();
        log.extend_from_slice(b"\n");
        log.extend_from_slice(text);
        log.extend_from_slice(b"\n{}\n");
        let log = file(folder.path(), "log", &log);
        let ended = run(&asked(&log, &["--json"]));
        assert!(ended.complaint(BAD_INPUT).contains(" line 12: "), "{}", ended.stderr);
    }
    let long = format!("{}\n{{\"a\":\"{}\"}}\n", sound().join("\n"), "x".repeat(2 << 20));
    let log = file(folder.path(), "log", long);
    assert!(run(&asked(&log, &[])).complaint(BAD_INPUT).contains("line 12: an entry of more than 1024 KiB"));
}

#[test]
fn a_file_cut_at_its_end_is_used_up_to_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let whole = sound();
    for text in [whole.join("\n"), format!("[{}]", whole.join(",\n"))] {
        for cut in [1, 2, 20, 90] {
            let log = file(folder.path(), "log", &text[..text.len() - cut]);
            let ended = run(&asked(&log, &["--json"]));
            assert_eq!(
                ended.json()["last_recorded_step"].as_i64(),
                Some(if cut == 1 && text.starts_with('[') { 9 } else { 8 })
            );
            assert!(ended.stderr.contains("warning: the file ends within line 11"), "{}", ended.stderr);
        }
    }
}

#[test]
fn values_of_the_wrong_type_fail_as_the_library_does_and_strict_leaves_them_out() {
    let folder = tempfile::tempdir().unwrap();
    let save = |field: &str| {
        format!(
            r#"{{"job_name":"j","event_type":"save","step":1,"directory":"gs://b",{field}
               "checkpointer_blocking_duration_secs":1.0,"wait_for_prev_duration_secs":0.1,
               "get_old_steps_duration_secs":0.1}}"#
        )
        .replace('\n', " ")
    };
    for (payload, error, repair) in [
        (
            r#"{"job_name":"j","step_count":10,"step_start_time":"NaN"}"#.to_owned(),
            "TypeError",
            "unreadable_value",
        ),
        (
            r#"{"job_name":"j","step_count":"ten","step_start_time":1.0}"#.to_owned(),
            "ValueError",
            "unreadable_value",
        ),
        (r#"{"job_name":"j","step_start_time":1.0}"#.to_owned(), "KeyError", "unreadable_value"),
        (save(""), "KeyError", "incomplete_checkpoint"),
        (save(r#""checkpoint_manager_blocking_duration_secs":null,"#), "TypeError", "incomplete_checkpoint"),
        (
            save(r#""checkpoint_manager_blocking_duration_secs":"soon","#),
            "ValueError",
            "incomplete_checkpoint",
        ),
    ] {
        let mut lines = sound();
        lines.push(line(START + 19.0, "\"z\"", &payload));
        let log = file(folder.path(), "log", lines.join("\n"));
        let answer = run(&asked(&log, &["--json"])).json();
        assert_eq!(answer["error"], error, "{payload}");
        assert!(!answer["message"].as_str().unwrap().is_empty());
        assert!(run(&asked(&log, &[])).complaint(BAD_INPUT).contains(error));
        let strict = run(&asked(&log, &["--json", "--strict"])).json();
        assert!(strict["goodput_percent"].as_f64().unwrap() > 90.0);
        assert!(strict["repairs"].to_string().contains(repair), "{strict}");
    }
    // A numeric string where the library takes one, and keys nobody knows.
    let mut lines = sound();
    lines.push(line(START + 19.0, "\"z\"", &save(r#""checkpoint_manager_blocking_duration_secs":" 1.5 ","#)));
    lines.push(line(START + 19.0, "\"zz\"", r#"{"job_name":"j","novelty":[{"a":null}],"x":"y"}"#));
    let log = file(folder.path(), "log", lines.join("\n"));
    let answer = run(&asked(&log, &["--json"])).json();
    assert_eq!(answer["unproductive_seconds"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"], 1.5);
}

/// A sound log under the names of the newer API, its times in RFC 3339.
fn newer() -> Vec<String> {
    let text = |at: f64| goodput::time::Micros::from_seconds(at).unwrap().to_string().replacen(' ', "T", 1);
    let start = text(START);
    let job = format!(r#"{{"job_name":"j","event":"JOB","start_time":"{start}"}}"#);
    let mut lines = vec![line(START, "\"a\"", &job)];
    for step in 0..10 {
        let at = START + f64::from(step) * 2.0;
        let payload =
            format!(r#"{{"job_name":"j","event":"STEP","step":{step},"start_time":"{}"}}"#, text(at));
        lines.push(line(at, &format!("\"s{step}\""), &payload));
    }
    lines
}

/// The real library fails so, too; its look-back has nothing to do with a window.
#[test]
fn a_window_over_times_in_text_points_at_strict() {
    let folder = tempfile::tempdir().unwrap();
    let log = file(folder.path(), "log", newer().join("\n"));
    assert_eq!(run(&asked(&log, &["--json"])).json()["last_recorded_step"], 9);
    let window = ["--from-log", &log, "--job", "j", "--start", "1772323203", "--end", "1772323213"];
    let ended = run(&window);
    assert!(ended.complaint(BAD_INPUT).contains("TypeError: 'str' object"), "{}", ended.stderr);
    let remedy = "by epoch seconds, which the entry of 2026-03-01 00:00:04+00:00 does not have";
    assert!(ended.stderr.contains(remedy) && ended.stderr.contains("--strict"), "{}", ended.stderr);
    let strict = run(&[&window[..], &["--strict", "--json"]].concat()).json();
    assert_eq!(strict["goodput_percent"], 100.0);
    let sound = file(folder.path(), "sound", sound().join("\n"));
    let empty = ["--from-log", &sound, "--job", "j", "--start", "1772323204.5", "--end", "1772323205"];
    let ended = run(&empty);
    assert!(ended.complaint(BAD_INPUT).contains("No log entries found"), "{}", ended.stderr);
    let outside = ["--from-log", &sound, "--job", "j", "--start", "5", "--end", "6"];
    for strict in [&[][..], &["--strict"]] {
        let ended = run(&[&outside[..], strict].concat());
        let period = "entries are from 2026-03-01 00:00:00+00:00 to 2026-03-01 00:00:18+00:00";
        assert!(ended.complaint(BAD_INPUT).contains("ValueError") && ended.stderr.contains(period));
    }
    assert!(!ended.stderr.contains("looks back"), "{}", ended.stderr);
    let ended = run(&["--from-log", &sound, "--job", "j", "--now", "1773323205"]);
    assert!(ended.complaint(BAD_INPUT).contains("ValueError") && ended.stderr.contains("looks back"));
    assert!(ended.stderr.contains("set --lookback-days 12,"), "{}", ended.stderr);
    let farther = ["--from-log", &sound, "--job", "j", "--now", "1773323205", "--lookback-days", "12"];
    assert_eq!(run(&farther).code, Some(0));
}

#[test]
fn wrong_command_lines_and_queries() {
    let folder = tempfile::tempdir().unwrap();
    let log = file(folder.path(), "log", sound().join("\n"));
    let queries = file(folder.path(), "queries", r#"[{"kind":"cumulative"}]"#);
    for args in [
        &["--from-log", &log][..],
        &["--proxy", "--strict"],
        &["--window", "0s"],
        &["--window", "1h", "--start", "1", "--end", "2"],
        &["--start", "6", "--end", "5"],
        &["--explain", "--from-log", &log, "--job", "j"],
        &["--from-slots", &log, "--hosts", "a", "--via", "ssh"],
        &["--from-log", &log, "--job", "j", "--start", "1"],
        &["--from-log", &log, "--job", "j", "--now", "tomorrow"],
        &["--from-log", &log, "--job", "j", "--start", "5", "--end", "5"],
        &["--from-log", &log, "--job", "j", "--start", "6", "--end", "5"],
        &["--from-log", &log, "--job", "j", "--compat", "9.9.9"],
        &["--from-log", &log, "--job", "j", "--compat", "0.2.3", "--strict"],
        &["--from-log", &log, "--job", "j", "--queries", &queries, "--now", "1"],
        &["--from-log", &log, "--from-slots", &log, "--job", "j"],
    ] {
        assert_eq!(run(args).code, Some(USAGE), "{args:?}");
    }
    for far in ["1e12", "-1e12", "9999-12-31T23:59:59Z"] {
        let far = run(&["--from-log", &log, "--job", "j", "--now", far]);
        assert!(far.code == Some(USAGE) && far.stderr.contains("out of range"), "{}", far.stderr);
    }
    let before = ["--from-log", &log, "--job", "j", "--json", "--now", "-1"];
    assert_eq!(run(&before).json()["error"], "ValueError");
    let before = ["--from-log", &log, "--job", "j", "--json", "--start", "-2.5", "--end", "-1e0"];
    assert_eq!(run(&before).json()["error"], "ValueError");
    let with_queries = ["--from-log", &log, "--job", "j", "--queries", &queries];
    assert!(run(&with_queries).complaint(BAD_INPUT).contains("missing field `now`"));
    for text in
        ["", "{}", "[1]", r#"[{"kind":"guess","now":1}]"#, r#"{"chips":"x","now":1}"#, r#"{"now":null}"#]
    {
        let bad = file(folder.path(), "bad", text);
        run(&["--from-log", &log, "--job", "j", "--queries", &bad]).complaint(BAD_INPUT);
        run(&["--from-slots", &bad, "--json"]).complaint(BAD_INPUT);
    }
    let far = file(folder.path(), "far", r#"{"now":1e15,"opens":[[0,1,0,null]]}"#);
    assert!(run(&["--from-slots", &far]).complaint(TOO_LARGE).contains("the limit is"));
    let zipped = file(folder.path(), "zipped", b"\x1f\x8b\x08\0");
    assert!(run(&["--from-slots", &zipped]).complaint(BAD_INPUT).contains("gzip"));
    let many: Vec<i64> = (0..256).collect();
    let wide = format!(r#"{{"chips":{many:?},"now":34560000,"opens":[[0,1,0,null]]}}"#);
    let wide = file(folder.path(), "wide", wide);
    assert!(run(&["--from-slots", &wide]).complaint(TOO_LARGE).contains("256 chips"));
    let wild = file(folder.path(), "wild", r#"{"chips":[0],"now":9,"duty":[[0,0,[101]]]}"#);
    assert!(run(&["--from-slots", &wild]).complaint(BAD_INPUT).contains("101 of chip 0"));
    let big = file(folder.path(), "big", vec![b' '; (16 << 20) + 1]);
    run(&["--from-log", &log, "--job", "j", "--queries", &big]).complaint(TOO_LARGE);
    // Far-off instants are answers, not crashes.
    let queries = file(
        folder.path(),
        "queries",
        r#"[{"kind":"cumulative","now":1e300},{"kind":"interval","start":-1e12,"end":1e11},
            {"kind":"exclusions","now":1772323220,"exclude":[[5,1],[1e18,2]]}]"#,
    );
    let answers = run(&["--from-log", &log, "--job", "j", "--queries", &queries]).json();
    assert_eq!(answers.as_array().unwrap().iter().filter(|a| a["error"] == "ValueError").count(), 3);
}

#[test]
fn names_with_control_bytes_never_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let payload = |rest: &str| format!(r#"{{"job_name":"j\u001b[31m",{rest}}}"#);
    let mut lines = vec![line(START, "\"a\"", &payload(&format!(r#""job_start_time":{START:?}"#)))];
    for (step, at) in [(0, START), (1, START + 20.0)] {
        lines.push(line(at, "\"b\"", &payload(&format!(r#""step_count":{step},"step_start_time":{at:?}"#))));
    }
    for (edge, at) in [("start", START + 1.0), ("end", START + 9.0)] {
        let event =
            format!(r#""custom_badput_event_type":"e\u0007","custom_badput_event_{edge}_time":{at:?}"#);
        lines.push(line(at, "\"c\"", &payload(&event)));
    }
    let log = file(folder.path(), "log", lines.join("\n"));
    let ended = run(&["--from-log", &log, "--job", "j\u{1b}[31m", "--now", "1772323220"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("CUSTOM_BADPUT_EVENTS.E"), "{}", ended.stdout);
    assert!(ended.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", ended.stdout);
}

/// The peak memory of a finished child, in KiB, by the shell's own measure of it.
fn peak_kib(args: &[&str], feed: impl FnOnce(&mut dyn Write)) -> (Option<i32>, u64, String) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("peak");
    let script = "import os,resource,subprocess,sys\n\
        code=subprocess.call(sys.argv[2:])\n\
        open(sys.argv[1],'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
        sys.exit(code)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(&report)
        .arg(tpuscope())
        .arg("goodput")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    feed(&mut child.stdin.take().unwrap());
    let out = child.wait_with_output().unwrap();
    let peak = fs::read_to_string(report).unwrap().parse().unwrap();
    (out.status.code(), peak, String::from_utf8(out.stdout).unwrap())
}

#[test]
fn ten_million_foreign_lines_cost_no_memory() {
    let vector = vector(&golden("goodput")[0]);
    let args = ["--from-log", "-", "--job", &vector.job, "--now", "1772323442", "--json"];
    let feed = |out: &mut dyn Write| {
        let block = "{}\n".repeat(100_000);
        for at in 0..100 {
            out.write_all(block.as_bytes()).unwrap();
            if at == 50 {
                out.write_all((vector.lines.join("\n") + "\n").as_bytes()).unwrap();
            }
        }
    };
    let (code, peak, answer) = peak_kib(&args, feed);
    assert_eq!(code, Some(0));
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert!((answer["goodput_percent"].as_f64().unwrap() - 82.417_582_417_582_41).abs() < 1e-6);
    assert!(peak < 48 << 10, "peak {peak} KiB");
}
