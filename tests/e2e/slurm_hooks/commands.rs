//! `tpuscope slurm prolog` and its like against a real agent, and against one that is away, hangs or lacks its disk.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use fakes::{
    command::{Ended, run, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    jax_job::JaxJob,
    running_agent::{Home, RunningAgent},
    small_disk::SmallDisk,
    wait::{eventually, until},
};
use model::device::Generation;
use nix::sys::signal::Signal;

/// The user of the job, which is not the one of the tests.
const USER: u32 = 20_001;

/// What Slurm sets for a prolog and an epilog.
const VARIABLES: [(&str, &str); 6] = [
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_JOB_UID", "20001"),
    ("SLURM_JOB_RESTART_COUNT", "0"),
    ("SLURM_CLUSTER_NAME", "lab"),
    ("SLURM_NODELIST", "tpu-[1-2]"),
    ("SLURMD_NODENAME", "tpu-2"),
];

/// Runs a hook with the variables of a job, and others that replace them.
fn hook(words: &[&str], socket: &Path, others: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(tpuscope());
    command.env_clear().arg("slurm").args(words).arg("--socket").arg(socket);
    command.envs(VARIABLES).envs(others.iter().copied());
    start_as(command).end()
}

/// The same as a plain user in a folder of that user.
fn hook_of_user(words: &[&str], socket: &Path, folder: &Path, others: &[(&str, &str)]) -> Ended {
    let mut command = Command::new("setpriv");
    let id = USER.to_string();
    command.env_clear().args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    command.arg(tpuscope()).arg("slurm").args(words).arg("--socket").arg(socket).current_dir(folder);
    command.envs(VARIABLES).envs(others.iter().copied());
    start_as(command).end()
}

fn agent() -> (FakeHost, RunningAgent) {
    let host = FakeHost::with(Generation::V6e, 1);
    let agent = RunningAgent::start(&host, "");
    (host, agent)
}

fn quiet(ended: &Ended) {
    assert_eq!((ended.code, &ended.stdout[..], &ended.stderr[..]), (Some(0), "", ""), "{ended:?}");
}

/// The report of the job as JSON.
fn report(socket: &Path) -> serde_json::Value {
    let ended = hook(&["report", "4711", "--json"], socket, &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    crate::schema::Schema::open("slurm-report").admits(&report);
    report
}

#[test]
fn a_job_is_registered_once_however_often_its_hooks_run() {
    let (_host, agent) = agent();
    let socket = agent.home().socket();
    for _ in 0..2 {
        quiet(&hook(&["prolog", "--strict"], &socket, &[]));
    }
    let running = report(&socket);
    let job = &running["job"];
    assert_eq!(
        (&job["state"], &job["cluster"], &job["uid"]),
        (&"running".into(), &"lab".into(), &USER.into())
    );
    let first = [(); 2].map(|()| {
        quiet(&hook(&["epilog", "--strict"], &socket, &[("SLURM_JOB_EXIT_CODE", "10752")]));
        report(&socket)["job"]["attempts"][0].clone()
    });
    assert_eq!(first[0], first[1], "the second epilog changes nothing");
    // Late, and for the second time.
    quiet(&hook(&["prolog", "--strict"], &socket, &[("SLURM_JOB_RESTART_COUNT", "1")]));
    quiet(&hook(&["epilog", "--strict"], &socket, &[("SLURM_JOB_RESTART_COUNT", "2")]));
    let ended = report(&socket);
    let attempts = ended["job"]["attempts"].as_array().unwrap();
    let how = |attempt: &serde_json::Value| {
        let ending = &attempt["ending"];
        (attempt["attempt"].clone(), ending["how"].clone(), ending["code"].clone(), attempt["rank"].clone())
    };
    let wanted = [
        (0.into(), "exit".into(), 42.into(), 1.into()),
        (1.into(), "requeued".into(), serde_json::Value::Null, 1.into()),
    ];
    assert_eq!(attempts.iter().map(how).collect::<Vec<_>>(), wanted, "{ended}");
    assert_eq!(attempts[0]["hosts"], serde_json::json!(["tpu-1", "tpu-2"]));
}

#[test]
fn nobody_but_root_speaks_for_other_users() {
    let (_host, agent) = agent();
    let socket = agent.home().socket();
    let dir = Home::new();
    let foreign = [("SLURM_JOB_UID", "20002")];
    for words in [["prolog", "--strict"], ["epilog", "--strict"]] {
        hook_of_user(&words, &socket, dir.path(), &foreign).failed(4, "user");
    }
    // A task tells of its own user, whatever the variables say.
    quiet(&hook_of_user(&["task-prolog", "--strict"], &socket, dir.path(), &foreign));
    let own = &report(&socket)["job"];
    assert_eq!((&own["uid"], &own["state"]), (&USER.into(), &"running".into()));
    let report = hook_of_user(&["report", "4711"], &socket, dir.path(), &[]);
    assert_eq!(report.code, Some(0), "{report:?}");
}

#[test]
fn the_user_of_the_settings_speaks_for_others() {
    let host = FakeHost::with(Generation::V6e, 1);
    let agent = RunningAgent::start(&host, "[slurm]\nuser = 'daemon'\n");
    let mut command = Command::new("setpriv");
    command.env_clear().args(["--reuid", "daemon", "--clear-groups"]).arg(tpuscope());
    command.args(["slurm", "prolog", "--strict", "--socket"]).arg(agent.home().socket()).envs(VARIABLES);
    quiet(&start_as(command).end());
    assert_eq!(report(&agent.home().socket())["job"]["uid"], USER);
    let home = Home::new();
    let command = home.command(&host.config("[slurm]\nuser = 'no-such-user'\n"));
    let wrong = RunningAgent::spawn(home, command);
    let says = eventually("the agent to refuse its settings", || {
        Some(wrong.log()).filter(|log| log.contains("there is no user `no-such-user` (slurm.user)"))
    });
    assert_eq!(wrong.end().0, Some(3), "{says}");
}

#[test]
fn a_hook_gives_up_at_its_limit_when_the_agent_hangs() {
    let (_host, agent) = agent();
    let socket = agent.home().socket();
    agent.signal(Signal::SIGSTOP);
    for (words, limit) in [(["prolog", "--strict"], 2.0), (["epilog", "--strict"], 5.0)] {
        let ended = hook(&words, &socket, &[]);
        ended.failed(15, &format!("the {} gave up after ", words[0]));
        // By its own report, against its own limit.
        let elapsed: f64 = ended.stderr.split(' ').nth(6).unwrap().parse().unwrap();
        assert!(elapsed >= limit, "{ended:?}");
        assert!(ended.stderr.contains(&format!(" s: its limit is {limit}s\n")), "{ended:?}");
    }
    let ended = hook(&["prolog"], &socket, &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("tpuscope: the prolog gave up after "), "{ended:?}");
    agent.signal(Signal::SIGCONT);
    quiet(&hook(&["prolog", "--strict"], &socket, &[]));
}

#[test]
fn without_an_agent_a_hook_ends_with_0() {
    let home = Home::new();
    for (name, code) in [("prolog", 6), ("epilog", 6), ("task-prolog", 6)] {
        let ended = hook(&[name], &home.socket(), &[]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.stderr.starts_with("tpuscope: no agent: there is no socket"), "{ended:?}");
        hook(&[name, "--strict"], &home.socket(), &[]).failed(code, "no agent");
    }
    // A socket that an agent left when it was killed.
    drop(std::os::unix::net::UnixListener::bind(home.socket()).unwrap());
    hook(&["prolog", "--strict"], &home.socket(), &[]).failed(6, "no process listens on");
}

#[test]
fn variables_that_slurm_would_never_set_are_one_clear_line() {
    let home = Home::new();
    for (name, value, says) in [
        ("SLURM_JOB_ID", "", "SLURM_JOB_ID is not set"),
        ("SLURM_JOB_ID", "7;id", "SLURM_JOB_ID is `7;id`"),
        ("SLURM_JOB_UID", "-1", "SLURM_JOB_UID is `-1`"),
        ("SLURM_NODELIST", "n[1-99999999]", "SLURM_NODELIST: the host list has more than 65536 hosts"),
        ("SLURM_CLUSTER_NAME", "\u{1b}[2J", "SLURM_CLUSTER_NAME is `\u{fffd}[2J`"),
        ("SLURM_JOB_EXIT_CODE", "x", "SLURM_JOB_EXIT_CODE is `x`"),
    ] {
        let of_hook = if name == "SLURM_JOB_EXIT_CODE" { "epilog" } else { "prolog" };
        let mut others = vec![(name, value)];
        if name == "SLURM_JOB_ID" {
            others.push(("SLURM_JOBID", value));
        }
        hook(&[of_hook, "--strict"], &home.socket(), &others).failed(2, says);
        assert_eq!(hook(&[of_hook], &home.socket(), &others).code, Some(0));
    }
}

#[test]
fn a_full_disk_of_the_agent_does_not_hold_a_job() {
    let host = FakeHost::with(Generation::V6e, 1);
    let disk = SmallDisk::new();
    let home = Home::new();
    symlink(disk.path(), home.path().join("state")).unwrap();
    let command = home.command(&host.config(""));
    let agent = RunningAgent::ready(home, command);
    // It takes all that is left, and fails then.
    let _ = fs::write(disk.path().join("filler"), vec![0; 2 << 20]);
    let ended = hook(&["prolog"], &agent.home().socket(), &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
}

#[test]
fn a_report_is_written_where_the_user_asked_for_it_and_nowhere_else() {
    let (_host, agent) = agent();
    let socket = agent.home().socket();
    quiet(&hook(&["prolog", "--strict"], &socket, &[]));
    let home = Home::new();
    let work = home.path();
    fs::set_permissions(work, fs::Permissions::from_mode(0o777)).unwrap();
    let ask = |others: &[(&str, &str)]| hook_of_user(&["task-epilog", "--strict"], &socket, work, others);
    quiet(&ask(&[]));
    assert_eq!(fs::read_dir(work).unwrap().count(), 0, "nobody asked");
    quiet(&ask(&[("TPUSCOPE_REPORT", "report-%j-%N.txt")]));
    let text = fs::read_to_string(work.join("report-4711-tpu-2.txt")).unwrap();
    assert!(text.starts_with("job slurm:4711, ") && text.contains("\nattempt 0: running, from "), "{text}");
    // Another task of this host, and another one of the job.
    quiet(&ask(&[("TPUSCOPE_REPORT", "two-%N"), ("SLURM_LOCALID", "1")]));
    quiet(&ask(&[("TPUSCOPE_REPORT", "two"), ("SLURM_PROCID", "1")]));
    assert!(!work.join("two-tpu-2").exists() && !work.join("two").exists());

    let victim = work.join("victim");
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, work.join("link")).unwrap();
    ask(&[("TPUSCOPE_REPORT", "link")]).failed(7, "exists and is no regular file");
    ask(&[("TPUSCOPE_REPORT", "../up")]).failed(2, "TPUSCOPE_REPORT is `../up`");
    ask(&[("TPUSCOPE_REPORT", "none/r")]).failed(5, "cannot open the folder");
    ask(&[("TPUSCOPE_REPORT", "r"), ("SLURM_JOB_WORK_DIR", "/usr")]).failed(4, "cannot write");
    let root = hook(
        &["task-epilog", "--strict"],
        &socket,
        &[("TPUSCOPE_REPORT", "r"), ("SLURM_JOB_WORK_DIR", work.to_str().unwrap())],
    );
    root.failed(4, "no report is written as root");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    assert_eq!(fs::read_dir(work).unwrap().count(), 3);
}

#[test]
fn the_uploads_of_a_job_that_ended_go_first() {
    let job = JaxJob::new().variable("SLURM_JOB_ID", "4711").start();
    // It is not mounted: what is to go there waits.
    let settings = "[workload]\ndiscover = 'any'\nprobe = 'listeners'\n\
        [[destination]]\nname = 'away'\nurl = 'file:///nonexistent/away'\n";
    let agent = RunningAgent::start(&FakeHost::new(), settings);
    let socket = agent.home().socket();
    let at = socket.display().to_string();
    let ask = |words: &[&str]| run(agent.home().path(), &[words, &["--socket", &at]].concat());
    let pid = job.pid().to_string();
    let capture = ["capture", "--pid", &pid, "--duration", "100ms", "--session", "s", "--to", "away"];
    assert_eq!(ask(&capture).code, Some(0), "{}", agent.log());
    let priority = || ask(&["uploads", "list", "--json"]).json()["uploads"][0]["priority"].clone();
    assert_eq!(priority(), "asked");
    quiet(&hook(&["epilog", "--strict"], &socket, &[("SLURM_JOB_ID", "4712")]));
    quiet(&hook(&["epilog", "--strict"], &socket, &[]));
    until("the upload to go first", || priority() == "triggered");
    let log = agent.log();
    let told: Vec<_> =
        log.lines().filter(|line| line.contains("the uploads of a job that ended go first")).collect();
    assert!(told.len() == 1 && told[0].contains("job=slurm:4711 count=1"), "{log}");
    let text = hook(&["report", "4711"], &socket, &[]);
    assert!(text.stdout.contains("\nSESSION") && text.stdout.contains("away: "), "{text:?}");
}
