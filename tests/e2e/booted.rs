//! The service in a machine booted by a real systemd: install, start, sample, capture; killed and hung, it comes back.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    containers::Booted,
    harness::{artifact, peer, peers, tpuscope, workspace},
    wait::{LIMIT, wait_with},
};
use serde_json::Value;

const FAKE: &str = "/opt/fake-host";
const RUNTIME_PORT: &str = "18431";
const PROFILER_PORT: &str = "19012";

/// The folders that the interpreter of the venv needs: the venv and the Python that made it.
fn python_folders() -> Vec<PathBuf> {
    let script = "import sys; print(sys.base_prefix)";
    let output = Command::new(peer("xprof/bin/python")).args(["-c", script]).output().expect("python runs");
    assert!(output.status.success(), "{output:?}");
    vec![PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())]
}

/// Boots the machine, installs tpuscope as the README says, and gives it fake chips and a real job that holds them.
fn machine() -> Booted {
    let peers = std::fs::canonicalize(peers()).expect("the peers are installed");
    let workspace = workspace();
    let mut shown: Vec<PathBuf> = vec![workspace.clone(), peers];
    shown.extend(python_folders());
    let shown: Vec<&Path> = shown.iter().map(PathBuf::as_path).collect();
    let machine = Booted::boot(&shown);

    let install = workspace.join("packaging/install.sh");
    machine.run(&install.display().to_string(), &[&tpuscope().display().to_string()]);
    for chip in 0..4 {
        let function = format!("{FAKE}/sys/bus/pci/devices/0000:00:0{}.0", chip + 4);
        machine.write(&format!("{function}/vendor"), "0x1ae0\n");
        machine.write(&format!("{function}/device"), "0x006f\n");
        machine.write(&format!("{function}/class"), "0x120000\n");
        machine.run("mkdir", &["-p", &format!("{FAKE}/sys/kernel/iommu_groups/{chip}")]);
        let group = format!("../../../../kernel/iommu_groups/{chip}");
        machine.run("ln", &["-s", &group, &format!("{function}/iommu_group")]);
        machine.write(&format!("{FAKE}/dev/vfio/{chip}"), "");
    }
    let settings = format!(
        "[paths]\nsysfs = \"{FAKE}/sys\"\ndev = \"{FAKE}/dev\"\n[sampler]\ninterval = \"250ms\"\n[workload]\nscan_interval = \"1s\"\n"
    );
    machine.write("/etc/tpuscope/tpuscope.toml", settings);
    // One chip more than there are.
    machine.write("/tmp/tpu-env", "TPU_CHIPS_PER_HOST_BOUNDS: '1,5,1'\n");
    // The shipped watchdog is patient; a test is not.
    machine.write(
        "/etc/systemd/system/tpuscope.service.d/test.conf",
        "[Service]\nWatchdogSec=3\nRestartSec=100ms\n",
    );
    machine.run("systemctl", &["daemon-reload"]);
    machine
}

fn start_job(machine: &Booted) {
    let fake = artifact("fake-tpu-host").display().to_string();
    let address = format!("127.0.0.1:{RUNTIME_PORT}");
    let python = peer("xprof/bin/python").display().to_string();
    let job = workspace().join("packaging/demo/job.py").display().to_string();
    let nodes: Vec<String> = (0..4).map(|chip| format!("{FAKE}/dev/vfio/{chip}")).collect();
    let ports = format!("--setenv=TPU_RUNTIME_METRICS_PORTS={RUNTIME_PORT}");
    let profiler = format!("--setenv=TPUSCOPE_PROFILER_PORT={PROFILER_PORT}");
    let mut arguments = vec![
        "--unit=job",
        "-q",
        "--setenv=JAX_PLATFORMS=cpu",
        &ports,
        &profiler,
        &python,
        &job,
        PROFILER_PORT,
    ];
    arguments.extend(nodes.iter().map(String::as_str));
    arguments.extend(["--", &fake, "--chips", "4", "--runtime", &address]);
    machine.run("systemd-run", &arguments);
    wait_with("the job", LIMIT, || log(machine), || log(machine).contains("ready").then_some(()));
}

/// What the service and the job have logged.
fn log(machine: &Booted) -> String {
    machine.run("journalctl", &["-u", "tpuscope", "-u", "job", "-o", "cat"])
}

/// What `tpuscope status --json` says, once it answers.
fn status(machine: &Booted) -> Option<Value> {
    let output = machine.attempt("tpuscope", &["status", "--json"]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("status prints JSON"))
}

fn main_pid(machine: &Booted) -> String {
    machine.property("tpuscope", "MainPID")
}

fn restarts(machine: &Booted) -> u32 {
    machine.property("tpuscope", "NRestarts").parse().expect("a number")
}

/// The name of the record of the session that the recorder has open.
fn open_session(machine: &Booted) -> Option<String> {
    // The folder comes with the first record.
    let found =
        machine.attempt("find", &["/var/lib/tpuscope/continuous", "-name", "*.json", "-printf", "%f"]);
    Some(String::from_utf8_lossy(&found.stdout).into_owned()).filter(|names| !names.is_empty())
}

fn chips_of_the_job(machine: &Booted) -> usize {
    let Some(status) = status(machine) else { return 0 };
    let job: Option<u64> = machine.property("job", "MainPID").parse().ok();
    let owners = status["owners"].as_array().cloned().unwrap_or_default();
    owners
        .iter()
        .find(|owner| job == owner["pid"].as_u64())
        .and_then(|owner| owner["chips"].as_array().map(Vec::len))
        .unwrap_or(0)
}

#[test]
fn installed_started_captured_killed_hung_and_stopped() {
    let machine = machine();
    start_job(&machine);

    machine.run("systemctl", &["enable", "--now", "tpuscope"]);
    assert_eq!(machine.property("tpuscope", "ActiveState"), "active", "start returns after the first sample");
    wait_with(
        "the job to be found with its four chips",
        LIMIT,
        || log(&machine),
        || (chips_of_the_job(&machine) == 4).then_some(()),
    );
    wait_with(
        "HBM of the chips",
        LIMIT,
        || log(&machine),
        || {
            let used = status(&machine)?["chips"][3]["hbm_used_bytes"].as_f64()?;
            (used > 0.0).then_some(())
        },
    );

    let output =
        machine.run("tpuscope", &["capture", "--duration", "500ms", "--session", "booted", "--json"]);
    let summary: Value = serde_json::from_str(&output).expect("capture prints JSON");
    let parts =
        machine.run("find", &["/var/lib/tpuscope", "-name", "*.xplane.pb", "-size", "+0", "-perm", "0640"]);
    assert_eq!(parts.lines().count(), 1, "{summary}\n{parts}");

    // The unit shows the host's /tmp to the agent, and closes it to writing.
    let expected = machine.run("tpuscope", &["metrics", "tpu_chips_expected"]);
    assert!(expected.contains('5'), "{expected}\n{}", log(&machine));
    let mounts = machine.run("cat", &[&format!("/proc/{}/mountinfo", main_pid(&machine))]);
    let tmp = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/tmp")).expect("it has a /tmp");
    assert!(tmp.split(' ').nth(5).is_some_and(|options| options.starts_with("ro")), "{tmp}");

    machine.run("tpuscope", &["recorder", "on", "--strategy", "drain"]);
    let record = wait_with("a session of the recorder", LIMIT, || log(&machine), || open_session(&machine));
    let before = main_pid(&machine);
    machine.run("systemctl", &["kill", "--signal=KILL", "--kill-who=main", "tpuscope"]);
    wait_with(
        "the service to come back after kill -9",
        LIMIT,
        || log(&machine),
        || (restarts(&machine) == 1 && chips_of_the_job(&machine) == 4).then_some(()),
    );
    assert_ne!(main_pid(&machine), before);
    // The unit stopped the session of the agent that was killed, before the next one began.
    let stopped = machine.property("tpuscope", "ExecStopPost");
    assert!(
        stopped.contains("stop-profilers") && stopped.contains("status=0"),
        "{stopped}\n{}",
        log(&machine)
    );
    assert_ne!(open_session(&machine).as_ref(), Some(&record));
    machine.run("tpuscope", &["recorder", "off"]);

    // A sysfs that never answers: whoever opens the file hangs, as on a dying device.
    let vendor = format!("{FAKE}/sys/bus/pci/devices/0000:00:04.0/vendor");
    let hung = main_pid(&machine);
    machine.run("mv", &[&vendor, "/opt/vendor"]);
    machine.run("mkfifo", &["-m", "0644", &vendor]);
    wait_with(
        // Chips are looked at once a minute; the watchdog comes some seconds after.
        "the watchdog to end the hung agent",
        3 * LIMIT,
        || log(&machine),
        || (main_pid(&machine) != hung).then_some(()),
    );
    machine.run("rm", &[&vendor]);
    machine.run("mv", &["/opt/vendor", &vendor]);
    wait_with(
        "the service to come back after a hang",
        LIMIT,
        || log(&machine),
        || (restarts(&machine) >= 2 && chips_of_the_job(&machine) == 4).then_some(()),
    );
    let log = log(&machine);
    assert!(log.contains("Watchdog timeout"), "{log}");

    // What was stored before is still there, and the job never noticed.
    let sessions = machine.run("tpuscope", &["sessions", "list", "--json"]);
    assert!(sessions.contains("booted"), "{sessions}");
    assert_eq!(machine.property("job", "ActiveState"), "active");

    machine.run("systemctl", &["stop", "tpuscope"]);
    assert_eq!(machine.property("tpuscope", "Result"), "success");
}

#[test]
fn its_log_lines_reach_the_journal_with_their_priority() {
    let machine = machine();
    machine.run("systemctl", &["start", "tpuscope"]);
    let log = machine.run("journalctl", &["-u", "tpuscope", "-o", "json", "-p", "info"]);
    let messages: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a journal entry")).collect();
    let is_start =
        |entry: &&Value| entry["MESSAGE"].as_str().is_some_and(|text| text.starts_with("started version="));
    let ours = messages.iter().find(is_start).expect("the agent says that it started");
    // Each field stands in the text, and beside it.
    let socket = ours["F_SOCKET"].as_str().expect("a field").to_owned();
    assert!(
        ours["MESSAGE"].as_str().is_some_and(|text| text.contains(&format!("socket={socket}"))),
        "{ours}"
    );
    assert_eq!(ours["PRIORITY"], "6");
    assert_eq!(ours["SYSLOG_IDENTIFIER"], "tpuscope");
}
