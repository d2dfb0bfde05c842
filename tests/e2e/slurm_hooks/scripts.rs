//! The scripts of `packaging/slurm`, with everything that may be wrong with the program that they call: they end with 0 and
//! print nothing, because another status drains a node, and what the prolog of a task prints changes the task.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use fakes::{
    command::{Ended, start_as},
    harness::tpuscope,
    slurm_cluster::{HOOKS, write_hook},
};

/// Runs a script as Slurm does: without PATH.
fn run(script: &Path, variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(script);
    command.env_clear().envs(variables.iter().copied());
    start_as(command).end()
}

#[test]
fn whatever_is_wrong_with_the_program_a_script_ends_with_0_and_prints_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = |name: &str, content: &[u8], mode| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let mut foreign = fs::read(tpuscope()).unwrap();
    // The machine in the header of an ELF file: one that no host of a TPU has.
    foreign.truncate(1 << 16);
    foreign[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let shows = "#!/bin/sh\necho export PATH=/bad\necho no >&2\n";
    for (what, program) in [
        ("missing", dir.path().join("none")),
        ("a folder", dir.path().to_owned()),
        ("not executable", program("plain", b"#!/bin/sh\n", 0o644)),
        ("of another architecture", program("foreign", &foreign, 0o755)),
        ("no program", program("text", b"\0\0", 0o755)),
        ("without its interpreter", program("script", b"#!/nonexistent/sh\n", 0o755)),
        ("crashing at its start", program("crash", b"#!/bin/sh\nkill -SEGV $$\n", 0o755)),
        ("killed", program("killed", b"#!/bin/sh\nkill -KILL $$\n", 0o755)),
        ("failing", program("fails", b"#!/bin/sh\nexit 127\n", 0o755)),
        ("talking", program("talks", shows.as_bytes(), 0o755)),
        ("working", tpuscope()),
    ] {
        for (_, hook) in HOOKS {
            let script = dir.path().join(hook);
            write_hook(hook, &program, &script);
            let ended = run(&script, &[]);
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{hook}, {what}: {ended:?}");
            let shown = ended.stderr.lines().all(|line| !line.contains("tpuscope: "));
            assert!(shown, "{hook}, {what}: {ended:?}");
        }
    }
}

#[test]
fn only_a_strict_script_passes_on_errors_and_status() {
    let dir = tempfile::tempdir().unwrap();
    for (_, hook) in HOOKS {
        let script = dir.path().join(hook);
        write_hook(hook, &tpuscope(), &script);
        let strict = [("TPUSCOPE_STRICT", "1"), ("SLURM_JOB_ID", "x"), ("TPUSCOPE_REPORT", "r")];
        let ended = run(&script, &strict);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.starts_with("tpuscope: SLURM_JOB_ID is `x`, and not a number"), "{ended:?}");
        let other = [("TPUSCOPE_STRICT", "yes"), ("SLURM_JOB_ID", "x")];
        assert_eq!(run(&script, &other).code, Some(0));
    }
}

#[test]
fn the_line_of_a_script_is_the_one_that_the_page_shows() {
    let page = include_str!("../../../packaging/slurm/README.md");
    let line = page.lines().find(|line| line.trim_start().starts_with("[ -x ")).unwrap().trim();
    for (hook, script, seconds) in [
        ("prolog", include_str!("../../../packaging/slurm/prolog"), 3),
        ("epilog", include_str!("../../../packaging/slurm/epilog"), 6),
        ("task-prolog", include_str!("../../../packaging/slurm/task-prolog"), 3),
        ("task-epilog", include_str!("../../../packaging/slurm/task-epilog"), 6),
    ] {
        let wanted = line.replace("slurm prolog", &format!("slurm {hook}"));
        let wanted = wanted.replace("-k 1 3", &format!("-k 1 {seconds}")) + "; exit 0";
        assert_eq!(script.lines().last(), Some(wanted.as_str()));
        let commands = script.lines().filter(|line| !line.starts_with('#'));
        assert!(commands.clone().all(|line| !line.contains("exec")), "{script}");
        assert_eq!(commands.count(), 2, "{script}");
    }
}
