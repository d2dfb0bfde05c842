//! `status`: what it shows of a host without chips, of simulated chips, and again and again.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use crate::schema::Schema;
use fakes::{
    command::{Ended, run},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::RunningAgent,
    wait::eventually,
};
use model::device::Generation;
use nix::{
    pty::{Winsize, openpty},
    sys::{signal::Signal, termios::tcgetattr},
};

fn status(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    let socket = agent.home().socket().display().to_string();
    let mut all = vec!["status", "--socket", &socket];
    all.extend(arguments);
    run(agent.home().path(), &all)
}

#[test]
fn a_healthy_host_without_chips_has_no_errors() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let json = agent.status();
    Schema::open("status").admits(&json);
    for source in json["sources"].as_array().unwrap() {
        if source["source"] != "host" {
            assert_eq!(
                (&source["errors"], &source["absent"]),
                (&0.into(), &serde_json::json!([])),
                "{source}"
            );
            assert!(source["unused"].as_str().is_some_and(|why| !why.is_empty()), "{source}");
        }
    }
    let quiet = status(&agent, &[]).stdout;
    assert!(quiet.ends_with("sampling\n\nno TPU chips on this host\n"), "{quiet}");
    let all = status(&agent, &["-v"]).stdout;
    assert!(all.contains("- orbax_grain: nothing to read: no workload opens the endpoint"), "{all}");
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
}

#[test]
fn simulated_chips_are_shown_selected_and_wide() {
    let host = FakeHost::with(Generation::V6e, 1);
    let agent = RunningAgent::start(&host, "[sampler]\nsim_chips = 2\n");
    let page = eventually("both chips", || {
        let page = status(&agent, &["-o", "wide"]).stdout;
        (page.matches("  sim ").count() == 2).then_some(page)
    });
    let cells = |chip: &str| {
        let line = page.lines().find(|line| line.starts_with(chip)).unwrap();
        line.split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(cells("CHIP")[5..], ["TENSORCORE", "HBM", "BW", "ICI", "QUEUE", "AGE", "OWNERS"]);
    // The real chip has no simulated value.
    assert_eq!(cells("0 ")[..8], ["0", "v6e", "ok", "-", "-", "/", "32.0", "GiB"]);
    let simulated = cells("2 ");
    assert_eq!((&simulated[..3], simulated.last()), (&["2", "sim", "-"][..], Some(&"-")));
    assert!(simulated[3].ends_with('%') && simulated[9].ends_with('%'), "{page}");
    let one = status(&agent, &["--chip", "1", "--json"]).json();
    Schema::open("status").admits(&one);
    assert_eq!(one["chips"].as_array().map(Vec::len), Some(1), "{one}");
    assert_eq!((&one["chips"][0]["index"], &one["chips"][0]["state"]), (&1.into(), &"".into()), "{one}");
    status(&agent, &["--chip", "7"]).failed(5, "there is no chip 7");
    status(&agent, &["--pid", "1"]).failed(5, "used by process 1");
    status(&agent, &["--pid", "abc"]).failed(2, "'abc' for '--pid <PID>': it is not a whole number");
    status(&agent, &["--json", "--watch"]).failed(2, "cannot be used with");
}

#[test]
fn a_watched_status_comes_again_and_ends_with_its_reader() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let mut watch = Command::new(tpuscope())
        .args(["status", "--watch", "--socket"])
        .arg(agent.home().socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let heads = lines.map(Result::unwrap).filter(|line| {
        assert!(!line.contains('\u{1b}'), "{line:?}");
        line.contains(": agent ")
    });
    assert_eq!(heads.take(2).count(), 2);
    // The pipe is closed now.
    let ended = eventually("the end of the command", || watch.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}

/// Watches the status on a terminal, in a session of its own, until two pages have come; then does `what` to the terminal
/// and the agent, which lives until the end if it is given back. How the command ended, and the last that was written.
fn watched(
    agent: RunningAgent,
    what: impl FnOnce(&mut File, RunningAgent) -> Option<RunningAgent>,
) -> (std::process::ExitStatus, String) {
    let size = Winsize { ws_row: 8, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).unwrap();
    let modes = tcgetattr(&terminal.slave).unwrap();
    let stream = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut watch = Command::new("setsid")
        // What the tests' own caller ignores, such as a job in the background, the command would ignore too.
        .args(["--ctty", "env", "--default-signal"])
        .arg(tpuscope())
        .args(["status", "--watch", "--socket"])
        .arg(agent.home().socket())
        .env("TERM", "xterm")
        .stdin(stream())
        .stdout(stream())
        .stderr(stream())
        .spawn()
        .unwrap();
    let mut screen = File::from(terminal.master);
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while text.matches("\u{1b}[H").count() < 2 || !text.ends_with("\u{1b}[J") {
        let length = screen.read(&mut piece).unwrap();
        text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
    }
    let _agent = what(&mut screen, agent);
    let ended = eventually("the end of the command", || watch.try_wait().unwrap());
    assert_eq!(tcgetattr(&terminal.slave).unwrap(), modes, "the terminal is as it was");
    let length = screen.read(&mut piece).unwrap_or(0);
    text.push_str(&String::from_utf8_lossy(&piece[..length]));
    for page in text.split("\u{1b}[H").skip(1) {
        let shown = page.split("\u{1b}[J").next().unwrap();
        assert!(shown.matches('\n').count() < 8, "{page:?} scrolls");
        assert_eq!(shown.matches('\n').count(), shown.matches("\u{1b}[K").count(), "{page:?}");
    }
    (ended, text)
}

#[test]
fn a_watched_status_stays_in_place_on_a_terminal_until_ctrl_c() {
    let host = FakeHost::with(Generation::V6e, 8);
    let (ended, text) = watched(RunningAgent::start(&host, ""), |terminal, agent| {
        terminal.write_all(b"\x03").unwrap();
        // It lives on: only the key ends the command.
        Some(agent)
    });
    assert_eq!(ended.signal(), Some(Signal::SIGINT as i32), "{text:?}");
    assert!(text.contains("more rows; --chip and --pid show less)"), "{text:?}");
}

#[test]
fn a_watched_status_ends_with_the_agent_and_says_so() {
    let host = FakeHost::new();
    let (ended, text) = watched(RunningAgent::start(&host, ""), |_, agent| {
        drop(agent);
        None
    });
    assert_eq!(ended.code(), Some(6), "{text:?}");
    assert!(text.contains("tpuscope: ") && text.contains("the agent"), "{text:?}");
}
