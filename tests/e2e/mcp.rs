//! `tpuscope mcp`, called by the client of the Python package `mcp`.

use std::{
    fs::File,
    io::Write,
    os::unix::net::UnixListener,
    path::Path,
    process::{Command, Stdio},
};

use fakes::{
    command::{run, without_inherited_settings},
    harness::{data, peer, tpuscope, workspace},
    running_agent::{Home, RunningAgent},
    wait::eventually,
};
use nix::{pty::openpty, sys::signal::Signal};
use serde_json::{Value, json};

use crate::{goodput::live::JobHost, schema::Schema};

/// The answers of a server for this socket to steps of the client; the first one is what the server says of itself.
fn answers(mode: &str, socket: &Path, steps: &Value) -> Vec<Value> {
    let mut command = Command::new(peer("mcp/bin/python"));
    command.arg(workspace().join("tests/peers/mcp_peer.py")).arg(mode);
    command.arg(tpuscope()).args(["mcp", "--socket"]).arg(socket);
    without_inherited_settings(&mut command);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(steps.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first text of an answer.
fn text(answer: &Value) -> &str {
    assert_ne!(answer["isError"], true, "{answer}");
    answer["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// The error of a tool: its code, its message and what to do.
fn failure(answer: &Value) -> (i64, String, String) {
    assert_eq!(answer["isError"], true, "{answer}");
    let error = &answer["structuredContent"]["error"];
    let field = |name: &str| error[name].as_str().unwrap().to_owned();
    let (message, remedy) = (field("message"), field("remedy"));
    assert!(text_of(answer).starts_with(&message), "{answer}");
    (error["exit_code"].as_i64().unwrap(), message, remedy)
}

fn text_of(answer: &Value) -> &str {
    answer["content"][0]["text"].as_str().unwrap()
}

fn call(name: &str, arguments: Value) -> Value {
    json!({ "call": name, "arguments": arguments })
}

/// An agent with a job that has chips open, and two recorded sessions.
fn with_sessions(host: &JobHost) -> RunningAgent {
    let agent = host.agent_with(Home::new(), "");
    for (name, from) in [("before", "straggler_4core"), ("after", "steady_1core")] {
        let folder = data().join("golden/xplane").join(from);
        let socket = agent.home().socket().display().to_string();
        let words =
            ["sessions", "import", &folder.display().to_string(), "--name", name, "--socket", &socket]
                .map(str::to_owned);
        let ended = run(agent.home().path(), &words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    agent
}

#[test]
fn a_client_lists_and_calls_every_tool() {
    let host = JobHost::new();
    let agent = with_sessions(&host);
    let socket = agent.home().socket();
    let _job = host.job();
    let known = |words: &[&str], says: &str| {
        eventually(says, || {
            let words: Vec<&str> =
                words.iter().copied().chain(["--socket", socket.to_str().unwrap()]).collect();
            run(agent.home().path(), &words).stdout.contains(says).then_some(())
        });
    };
    known(&["jobs", "list", "--running"], "slurm:77");
    known(&["goodput"], "slurm:77");
    known(&["history", "tpu_tensorcore_duty_cycle_ratio"], "LAST");
    let steps = json!([
        { "list": true },
        call("status", json!({})),
        call("status", json!({ "chip": 1, "json": true })),
        call("metrics", json!({ "pattern": "duty" })),
        call("metrics", json!({ "pattern": "duty", "json": true })),
        call("history", json!({ "metric": "tpu_tensorcore_duty_cycle_ratio", "chip": 0, "last": "10m", "json": true })),
        call("sessions", json!({ "json": true })),
        call("show", json!({ "session": "before" })),
        call("diff", json!({ "a": "before", "b": "after", "top": 3 })),
        call("goodput_explain", json!({ "job": "slurm:77" })),
        call("goodput_explain", json!({ "window": "1h", "json": true })),
        call("jobs", json!({ "running": true })),
        call("jobs", json!({ "job": "train", "json": true })),
        { "at_once": [call("status", json!({})), call("jobs", json!({})), call("metrics", json!({}))] },
        // More than a text may have.
        call("show", json!({ "session": "before", "json": true, "top": 1000 })),
    ]);
    let answers = answers("auto", &socket, &steps);
    assert_eq!(
        (&answers[0]["server"]["name"], &answers[0]["version"]),
        (&json!("tpuscope"), &json!("2026-07-28"))
    );
    let names: Vec<&str> =
        answers[1].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["status", "metrics", "history", "sessions", "show", "diff", "goodput_explain", "jobs"]
    );
    for tool in answers[1].as_array().unwrap() {
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
        jsonschema::meta::validate(&tool["inputSchema"]).unwrap();
    }
    let of_json = |at: usize| -> Value { serde_json::from_str(text(&answers[at])).unwrap() };
    assert!(text(&answers[2]).contains("CHIP"), "{}", answers[2]);
    assert_eq!(of_json(3)["chips"].as_array().unwrap().len(), 1);
    Schema::open("status").admits(&of_json(3));
    assert!(text(&answers[4]).contains("tpu_tensorcore_duty_cycle_ratio"), "{}", answers[4]);
    Schema::open("metrics").admits(&of_json(5));
    Schema::open("history").admits(&of_json(6));
    Schema::open("sessions-list").admits(&of_json(7));
    assert!(text(&answers[8]).contains("straggler  "), "{}", answers[8]);
    assert!(text(&answers[9]).contains("before"), "{}", answers[9]);
    assert!(text(&answers[10]).contains("(slurm:77), running: proxy goodput"), "{}", answers[10]);
    Schema::open("goodput-live").admits(&of_json(11));
    assert!(text(&answers[12]).contains("slurm:77"), "{}", answers[12]);
    Schema::open("jobs-show").admits(&of_json(13));
    for each in answers[14].as_array().unwrap() {
        text(each);
    }
    let long = &answers[15];
    assert!(text(long).len() <= 64 << 10, "{}", text(long).len());
    if text(long).len() > 60 << 10 {
        assert!(long["content"][1]["text"].as_str().unwrap().starts_with("[truncated"), "{long}");
    }
}

#[test]
fn what_is_wrong_is_an_error_with_what_to_do() {
    let host = JobHost::new();
    let agent = with_sessions(&host);
    let steps = json!([
        call("capture", json!({})),
        call("show", json!({})),
        call("show", json!({ "session": "../../etc/passwd" })),
        call("show", json!({ "session": "gs://bucket/x" })),
        call("show", json!({ "session": ["before"] })),
        call("show", json!({ "session": "before", "path": "/etc" })),
        call("status", json!({ "chip": 1e300 })),
        call("status", json!({ "chip": -1 })),
        call("status", json!({ "chip": "0" })),
        call("sessions", json!({ "limit": 0 })),
        call("history", json!({ "metric": "a\u{0}b" })),
        call("history", json!({ "metric": "x".repeat(100_000) })),
        call("history", json!({ "metric": "tpu_tensorcore_duty_cycle_ratio", "last": "0s" })),
        call("show", json!({ "session": "none" })),
        call("status", json!({ "chip": 9 })),
        call("metrics", json!({ "pattern": "--json" })),
        call("goodput_explain", json!({ "job": "--from-log=/etc/passwd" })),
        call("goodput_explain", json!({ "ledger": "exact" })),
        call("jobs", json!({ "job": "none" })),
        call("status", json!({})),
    ]);
    let answers = answers("legacy", &agent.home().socket(), &steps);
    assert_eq!(answers[0]["version"], "2025-11-25");
    let unknown = &answers[1]["protocol_error"];
    assert_eq!(unknown["code"], -32602, "{unknown}");
    assert!(unknown["message"].as_str().unwrap().contains("goodput_explain"), "{unknown}");
    for answer in &answers[2..14] {
        let (code, message, remedy) = failure(answer);
        assert!(code == 2 && remedy.contains("inputSchema"), "{answer}");
        assert!(message.len() < 400, "{message}");
    }
    for (at, code, says) in [
        (14, 5, "none"),
        (15, 5, "there is no chip 9"),
        (16, 5, "--json"),
        (17, 5, "--from-log=/etc/passwd"),
        (18, 2, "--job"),
        (19, 5, "none"),
    ] {
        let (found, message, _) = failure(&answers[at]);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(says), "{message}");
    }
    text(&answers[20]);
}

#[test]
fn an_agent_that_is_away_or_hangs_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([call("status", json!({})), call("jobs", json!({}))]);
    for answer in &answers("auto", &folder.path().join("none.sock"), &steps)[1..] {
        let (code, message, remedy) = failure(answer);
        assert!(code == 6 && message.contains("no agent") && remedy.contains("start the agent"), "{answer}");
    }
    let host = JobHost::new();
    let agent = host.agent_with(Home::new(), "");
    agent.signal(Signal::SIGSTOP);
    let stopped = answers(
        "legacy",
        &agent.home().socket(),
        &json!([{ "at_once": [call("status", json!({})), call("metrics", json!({}))] }]),
    );
    agent.signal(Signal::SIGCONT);
    for answer in stopped[1].as_array().unwrap() {
        let (code, message, remedy) = failure(answer);
        assert!([6, 15].contains(&code) && message.contains("answer") && !remedy.is_empty(), "{answer}");
    }
}

/// What a server for this socket answers to these lines, whose input then ends, and its exit code.
fn answered(socket: &Path, lines: &[String]) -> (Vec<Value>, Option<i32>) {
    let mut command = Command::new(tpuscope());
    command.arg("mcp").arg("--socket").arg(socket);
    without_inherited_settings(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.code())
}

#[test]
fn on_a_terminal_it_says_that_it_waits_for_a_client() {
    let terminal = openpty(None, None).unwrap();
    let mut command = Command::new(tpuscope());
    command.arg("mcp").stdin(Stdio::from(terminal.slave)).stdout(Stdio::piped()).stderr(Stdio::piped());
    without_inherited_settings(&mut command);
    let child = command.spawn().unwrap();
    // The command has the only other end.
    drop(command);
    // Ctrl-D.
    File::from(terminal.master.try_clone().unwrap()).write_all(b"\x04").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b""[..]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("a client of the Model Context Protocol") && said.lines().count() == 1, "{said}");
}

fn request(id: &Value, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

#[test]
fn the_input_may_end_before_the_answers_and_may_be_bad() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(2 << 20);
    let call = request(&json!("last"), "tools/call", &json!({ "name": "status" }));
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let lines = ["{", "[]", "7", &long, &deep, "", &call].map(str::to_owned);
    let (answers, code) = answered(&folder.path().join("none.sock"), &lines);
    assert_eq!(code, Some(0));
    let codes: Vec<i64> = answers.iter().filter_map(|line| line["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [-32700, -32600, -32600, -32600, -32700]);
    assert_eq!((&answers[5]["id"], &answers[5]["result"]["isError"]), (&json!("last"), &json!(true)));
}

#[test]
fn a_call_can_be_cancelled_and_there_are_not_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    // It takes connections, and never answers.
    let _agent = UnixListener::bind(&socket).unwrap();
    let status = json!({ "name": "status" });
    let mut lines: Vec<String> = (0..10).map(|id| request(&json!(id), "tools/call", &status)).collect();
    let cancelled =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 0 } });
    lines.push(cancelled.to_string());
    lines.push(request(&json!("ping"), "ping", &json!({})));
    let (answers, code) = answered(&socket, &lines);
    assert_eq!(code, Some(0));
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert!(!ids.contains(&&json!(0)) && ids.len() == 10, "{ids:?}");
    let codes: Vec<i64> = answers
        .iter()
        .filter_map(|answer| answer["result"]["structuredContent"]["error"]["exit_code"].as_i64())
        .collect();
    assert_eq!((codes.iter().filter(|code| **code == 7).count(), codes.len()), (2, 9), "{answers:?}");
}
