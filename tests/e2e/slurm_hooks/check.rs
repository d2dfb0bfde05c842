//! `tpuscope slurm check` on configurations of Slurm, sound and not.

use std::{fs, path::Path};

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::{Home, RunningAgent},
    slurm_cluster::{HOOKS, write_hook},
};
use model::device::Generation;

use crate::schema::Schema;

fn check(conf: &Path, socket: &Path, more: &[&str]) -> Ended {
    let mut command = std::process::Command::new(tpuscope());
    command.args(["slurm", "check", "--conf"]).arg(conf).arg("--socket").arg(socket).args(more);
    start_as(command).end()
}

/// Severity, setting and text of each finding.
fn findings(ended: &Ended) -> Vec<(String, String, String)> {
    let report = ended.json();
    Schema::open("slurm-check").admits(&report);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let found = report["findings"].as_array().unwrap().iter();
    found.map(|one| (text(&one["severity"]), text(&one["setting"]), text(&one["what"]))).collect()
}

#[test]
fn a_sound_set_up_has_nothing_wrong_and_each_fault_is_named() {
    let host = FakeHost::with(Generation::V6e, 1);
    let agent = RunningAgent::start(&host, "");
    let socket = agent.home().socket();
    let dir = Home::new();
    let mut conf = "ProctrackType=proctrack/cgroup\nPrologFlags=Alloc\nPrologEpilogTimeout=30\n".to_owned();
    for (key, name) in HOOKS {
        let script = dir.path().join(name);
        write_hook(name, &tpuscope(), &script);
        conf.push_str(&format!("{key}={}\n", script.display()));
    }
    let file = dir.path().join("slurm.conf");
    fs::write(&file, &conf).unwrap();
    let sound = check(&file, &socket, &[]);
    let wanted = format!("configuration: {}\nnothing is wrong with the hooks on this host\n", file.display());
    assert_eq!((sound.code, sound.stdout.as_str()), (Some(0), wanted.as_str()), "{sound:?}");

    fs::remove_file(dir.path().join("epilog")).unwrap();
    let prolog = fs::read_to_string(dir.path().join("prolog")).unwrap();
    let by_exec: String = prolog.lines().take(1).map(|line| format!("{line}\n")).collect();
    fs::write(dir.path().join("prolog"), by_exec + "exec tpuscope slurm prolog\n").unwrap();
    fs::write(&file, conf.replace("Timeout=30", "Timeout=5")).unwrap();
    let faulty = check(&file, &socket, &["--json"]);
    assert_eq!(faulty.code, Some(3), "{faulty:?}");
    let found = findings(&faulty);
    for (setting, what) in [
        ("Epilog", "does not exist on this host: Slurm drains the node after its next job"),
        ("Prolog", "with exec"),
        ("Prolog", "hooks have no PATH"),
        ("PrologEpilogTimeout", "5 s are too short"),
    ] {
        let is_it =
            |one: &&(String, String, String)| one.0 == "error" && one.1 == setting && one.2.contains(what);
        assert_eq!(found.iter().filter(is_it).count(), 1, "{setting} {what}: {found:?}");
    }
    let text = check(&file, &socket, &[]);
    assert!(text.stdout.contains("\nerror: PrologEpilogTimeout: 5 s are too short"), "{text:?}");
}

#[test]
fn a_host_without_slurm_or_agent_is_told_so() {
    let dir = Home::new();
    check(&dir.path().join("none"), &dir.socket(), &[]).failed(5, "cannot read ");
    check(dir.path(), &dir.socket(), &[]).failed(8, "it is not a regular file");
    fs::write(dir.path().join("noise"), [0x91, 0, b'=', 7]).unwrap();
    check(&dir.path().join("noise"), &dir.socket(), &[]).failed(8, "it is no slurm.conf");
    let file = dir.path().join("slurm.conf");
    fs::write(&file, "ClusterName=lab\n").unwrap();
    let bare = check(&file, &dir.socket(), &["--json"]);
    assert_eq!(bare.code, Some(0), "{bare:?}");
    let settings: Vec<_> =
        findings(&bare).into_iter().map(|(severity, setting, _)| (severity, setting)).collect();
    let warning = |setting: &str| ("warning".to_owned(), setting.to_owned());
    assert_eq!(settings, ["Prolog", "Epilog", "TaskProlog", "TaskEpilog", "agent"].map(warning));
    let mut command = std::process::Command::new(tpuscope());
    command.args(["slurm", "check"]).env("PATH", dir.path()).env("SLURM_CONF", dir.path().join("none"));
    if !Path::new("/etc/slurm/slurm.conf").exists() {
        start_as(command).end().failed(5, "no configuration of Slurm was found; cannot start scontrol");
    }
}
