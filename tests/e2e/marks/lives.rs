//! Agents that die, programs that fork, and programs that mark faster than they may.

use std::fs;

use fakes::{
    harness::copy_program,
    running_agent::Home,
    wait::{LIMIT, until, wait_with},
};

use super::*;

const STEPS: u64 = 300;

#[test]
fn an_agent_that_is_killed_loses_and_doubles_no_mark() {
    let mut host = MarkedHost::new("");
    let mut program = host.program("steps", &["j", &STEPS.to_string(), "0.004"]);
    assert_eq!(program.says(), "begun");
    for _ in 0..2 {
        until("marks in the store", || {
            host.ask(&["goodput", "--job", "j", "--json", "--strict"]).code == Some(0)
        });
        host.kill_and_restart();
    }
    program.go_on();
    let stats = program.last();
    let made = STEPS + 2;
    for (key, count) in [("made", made), ("stored", made), ("waiting", 0), ("dropped", 0), ("refused", 0)] {
        assert_eq!(stats[key], count, "{key} in {stats}");
    }
    assert_eq!(host.counts("j"), (made, 0, 0));
    let answer = host.goodput("j", &[]);
    assert_eq!((&answer["disruptions"], &answer["last_recorded_step"]), (&0.into(), &(STEPS - 1).into()));
    assert_eq!((&answer["job_end_logged"], &answer["marks"]["complete"]), (&true.into(), &true.into()));
}

#[test]
fn a_program_that_starts_before_the_agent_marks_from_its_start() {
    let mut host = MarkedHost::new("");
    let agent = host.agent.take().unwrap();
    agent.signal(Signal::SIGTERM);
    let (code, home) = agent.end();
    assert_eq!(code, Some(0));
    let socket = home.path().join("marks.sock");
    assert!(!socket.exists(), "an agent removes its socket");
    let mut program = Program::start(socket, "steps", &["j", "50", "0.001"], None);
    assert_eq!(program.says(), "begun");
    let command = home.command(&host.host.config(""));
    host.agent = Some(RunningAgent::ready(home, command));
    program.go_on();
    assert_eq!(program.last()["stored"], 52);
    assert_eq!(host.counts("j"), (52, 0, 0));
}

#[test]
fn parent_and_child_are_two_recorders_after_a_fork() {
    let host = MarkedHost::new("");
    let said = host.program("fork", &["j"]).last();
    assert_eq!((&said["child"], &said["stored"]), (&0.into(), &true.into()), "{said}");
    // The child has nothing of what the parent made before.
    assert_eq!(said["stats"]["stored"], 11);
    assert_eq!(host.counts("j"), (21, 0, 0));
}

#[test]
fn every_shape_of_a_mark_reaches_the_ledger_and_nothing_raises() {
    let host = MarkedHost::new("");
    let said = host.program("shapes", &["j"]).last();
    assert_eq!((&said["made"], &said["stored"]), (&21.into(), &true.into()), "{said}");
    // 21 of the shapes, and 800 of the threads.
    assert_eq!(host.counts("j"), (821, 0, 2), "{said}");
    // 5 steps that are no numbers, 2 events that are none, 2 checkpoints that are not JSON, 4 names that are no text; 2 steps
    // by the agent.
    assert_eq!(said["stats"]["refused"], 15, "{said}");
    assert_eq!((&said["sink"]["dropped"], &said["sink"]["refused"]), (&0.into(), &8.into()), "{said}");
    assert_eq!((&said["nameless"]["made"], &said["nameless"]["refused"]), (&0.into(), &1.into()), "{said}");
    assert_eq!(said["off"]["made"], 0);
    let answer = host.goodput("j", &["--strict"]);
    assert_eq!(answer["last_recorded_step"], 7);
    for bucket in ["TPU_INITIALIZATION", "TRAINING_PREP", "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] {
        assert!(answer["unproductive_seconds"][bucket].is_number(), "{bucket} in {answer}");
    }
    let custom = answer["unproductive_seconds"]["CUSTOM_BADPUT_EVENTS"].as_object().unwrap();
    assert!(custom.contains_key("50 % \"É\"\n"), "{custom:?}");
}

#[test]
fn every_mark_without_room_is_counted_as_lost_also_at_the_end_of_a_program() {
    let host = MarkedHost::new("[marks]\nmax_rate = 20000\n");
    let agent = host.agent.as_ref().unwrap();
    // However slow the program is, there is no room for all while nobody reads.
    agent.signal(Signal::SIGSTOP);
    let mut program = host.program("burst", &["j"]);
    assert_eq!(program.says(), "made");
    agent.signal(Signal::SIGCONT);
    let said = program.says();
    let number = |of: &str, key: &str| said[of][key].as_u64().unwrap();
    for of in ["flushed", "contended"] {
        let (made, stored, dropped) = (number(of, "made"), number(of, "stored"), number(of, "dropped"));
        assert!(dropped > 0 && stored + dropped == made && number(of, "waiting") == 0, "{of}: {said}");
    }
    assert_eq!((number("flushed", "made"), number("contended", "made")), (40_000, 40_006));
    // Two of the five were kept.
    assert_eq!(number("contended", "dropped"), number("flushed", "dropped") + 3);
    let ended = program.last();
    assert_eq!(ended["made"], 70_006);
    let told = || host.counts("j");
    wait_with(
        "the last number",
        LIMIT,
        || format!("{:?}", told()),
        || {
            let (stored, lost, refused) = told();
            (stored + lost == 70_006 && refused == 0 && lost >= number("contended", "dropped")).then_some(())
        },
    );
    let answer = host.goodput("j", &["--strict"]);
    assert_eq!(
        (&answer["marks"]["complete"], &answer["last_recorded_step"]),
        (&false.into(), &70_005.into())
    );
}

/// Memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_program_that_floods_loses_its_own_marks_and_disturbs_nobody() {
    const SOMEBODY: u32 = 54321;
    let host = MarkedHost::new("[marks]\nmax_rate = 2000\n");
    let folder = Home::new();
    let binary = folder.path().join("tpuscope");
    copy_program(&tpuscope(), &binary);
    let before = resident(host.agent().pid());
    let flood = host.program("flood", &["flood"]);
    // Meanwhile another user marks.
    for step in 0..20_u32 {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={SOMEBODY}"), &format!("--regid={SOMEBODY}"), "--clear-groups"]);
        command.arg(&binary).args(["mark", "STEP", "--strict", "--job", "calm", "--step", &step.to_string()]);
        command.arg("--socket").arg(host.home().socket());
        let ended = start_as(command).end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
    let said = flood.last();
    let (stored, lost, refused) = host.counts("flood");
    let dropped = said["dropped"].as_u64().unwrap();
    assert!(dropped > 0, "it is no flood: {said}");
    assert!(said["grown_kib"].as_u64().unwrap() < 32 << 10, "{said}");
    // All that was dropped is counted as lost, and nothing else is.
    assert_eq!((lost, refused), (said["stats"]["dropped"].as_u64().unwrap(), 0), "{said}");
    assert_eq!(stored + lost, said["stats"]["made"].as_u64().unwrap(), "{said}");
    assert_eq!(host.counts("calm"), (20, 0, 0));
    assert!(resident(host.agent().pid()) < before + (48 << 10), "the agent's memory is bounded");
    let answer = host.goodput("flood", &["--strict"]);
    assert_eq!(answer["marks"]["complete"], false);
    let page = host.ask(&["goodput", "--job", "flood", "--strict"]);
    assert!(page.stdout.contains("incomplete: ") && page.stdout.contains("never came"), "{page:?}");
    let metrics = host.agent().get("/metrics", "").body;
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("tpuscope_marks_lost_total") >= lost as f64, "{metrics}");
    assert!(value("tpuscope_marks_held_back_total") > 0.0, "{metrics}");
    assert!(host.agent().log().contains("marks of a program never came"), "{}", host.agent().log());
    assert_eq!(host.agent().status()["ready"], true);
}
