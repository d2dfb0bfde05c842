//! The strategy drain where something fails: nothing of it is left in a workload, whatever that is.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::symlink,
    process::Command,
    time::Instant,
};

use fakes::{
    command::start_as,
    fake_host::FakeHost,
    harness::{tpuscope, workspace},
    pid_ns::PidNs,
    profiler_probe::{becomes_free, is_free},
    running_agent::{Home, RunningAgent},
    small_disk::SmallDisk,
    wait::{LIMIT, eventually, until, wait_with},
};
use nix::sys::signal::Signal;

use super::{RecorderAgent, SETTINGS, SHORT, jax, unique};
use crate::continuous::send;

#[test]
fn a_full_disk_and_a_profiler_that_hangs_leave_nothing_in_the_workload() {
    let id = unique("hangs");
    let mut job = jax(&id).step_ms(1000).start();
    let disk = SmallDisk::new();
    let host = FakeHost::new();
    let home = Home::new();
    symlink(disk.path(), home.path().join("state")).unwrap();
    let settings = format!("{SETTINGS}{SHORT}");
    let command = home.command(&host.config(&settings));
    let agent = RecorderAgent { agent: RunningAgent::ready(home, command), host };
    agent.drain(&id);
    agent.windows(&id, 1);

    // The disk becomes full while the session is open: it is stopped, and that is said.
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let failure = wait_with(
        "the full disk to be said",
        2 * LIMIT,
        || agent.agent.log(),
        || {
            let failure = agent.status(&id)["last_failure"].as_str()?.to_owned();
            (failure.contains("No space left") || failure.contains("disk is full")).then_some(failure)
        },
    );
    until("the profiler to be free at times", || is_free(&job.target()));
    assert!(job.alive(), "{failure}");
    drop(file);
    fs::remove_file(&filler).unwrap();
    // A question of this test at the instant of a start is a foreign use: the owner asks again.
    agent.drain(&id);
    let held = agent.windows(&id, 0).len();
    agent.windows(&id, held + 2);

    // Ten steps a drain, and a drain may take twice as long.
    let every = eventually("the interval to follow the steps", || {
        agent.status(&id)["drain_seconds"].as_f64().filter(|every| *every >= 9.0)
    });
    send(job.pid(), Signal::SIGSTOP);
    let begin = Instant::now();
    agent.agent.signal(Signal::SIGTERM);
    let (code, home) = agent.agent.end();
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(code, Some(0));
    assert!(took < every * 1.5, "the agent waited {took} s for a drain of at most {} s", every * 2.0);
    let records = fs::read_dir(home.path().join("state/continuous")).unwrap().count();
    assert_eq!(records, 1, "nobody has stopped the session of a process that is stopped");
    // Its guard does when it goes on.
    send(job.pid(), Signal::SIGCONT);
    becomes_free(&job.target());
    assert!(job.alive());
}

/// The kernel kills all of a container with its first process: nothing would stop the session of an agent that is it.
#[test]
fn the_first_process_of_a_container_refuses_to_drain_and_says_why() {
    const WHY: &str = "the agent is process 1 of its pid namespace";
    let id = unique("container");
    let mut container = PidNs::new();
    let mut job = jax(&id).below(&container.enter()).start();
    // An agent outside may, and the owner's choice is kept.
    let outside = RecorderAgent::start(SHORT);
    outside.drain(&id);
    outside.windows(&id, 1);
    outside.agent.signal(Signal::SIGTERM);
    let (host, (_, home)) = (outside.host, outside.agent.end());
    assert!(is_free(&job.target()));

    // The next agent of this state is the first process of the container.
    let log = home.path().join("log of the container");
    container.first_process(&home.command(&host.config(&format!("{SETTINGS}{SHORT}"))), &log);
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let ask = |arguments: &[&str]| {
        let [program, words @ ..] = container.enter();
        let mut command = Command::new(program);
        command.args(words).arg(tpuscope()).args(arguments).arg("--socket").arg(home.socket());
        start_as(command).end()
    };
    let status = ["recorder", "status", "--job", &id];
    let process = wait_with("the refusal", LIMIT, said, || {
        let ended = ask(&[&status[..], &["--json"]].concat());
        let process = (ended.code == Some(0)).then(|| ended.json()["processes"][0].clone())?;
        process["last_failure"].as_str()?.contains(WHY).then_some(process)
    });
    assert_eq!((&process["strategy"], &process["open"]), (&"drain".into(), &false.into()), "{process}");
    let page = ask(&status).stdout;
    assert!(page.contains(&format!("drain, not recorded now: {WHY}")), "{page}");
    let on = ["recorder", "on", "--job", &id, "--strategy"];
    ask(&[&on[..], &["drain"]].concat()).failed(19, WHY);
    assert!(fs::read_to_string(workspace().join("docs/recorder.md")).unwrap().contains(WHY));
    assert!(is_free(&job.target()), "nothing was started");
    // Windows end by themselves.
    assert_eq!(ask(&[&on[..], &["periodic"]].concat()).code, Some(0));
    wait_with("a window", LIMIT, said, || {
        let processes = ask(&[&status[..], &["--json"]].concat()).json()["processes"].clone();
        (processes[0]["segments"].as_u64()? > 0).then_some(())
    });
    assert!(job.alive());
}
