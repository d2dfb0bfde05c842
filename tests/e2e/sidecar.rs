//! The container image as a sidecar: in the workload's pid and network namespaces, as no root, with a read-only root.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Command};

use fakes::{
    command::{run, start_as},
    containers::{Pod, base_image, build},
    harness::{artifact, tpuscope, workspace},
    net_ns::NetNs,
    python_peer::PythonPeer,
    wait::{LIMIT, wait_with},
};
use serde_json::Value;

use crate::agent::metrics_listener::{certificates, users};

const IMAGE: &str = "localhost/tpuscope/sidecar:test";
const PROFILER_PORT: &str = "19012";

/// The shipped Containerfile, on the small base, with the binary that was built.
fn image() {
    let context = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(tpuscope(), context.path().join("tpuscope")).expect("the binary can be copied");
    let shipped = ["LICENSE", "packaging/slurm", "docs"];
    let mut copy = Command::new("cp");
    copy.args(["-r", "--parents"]).args(shipped).arg(context.path());
    let status = copy.current_dir(workspace()).status().expect("cp runs");
    assert!(status.success(), "{status}");
    let arguments = [format!("BASE={}", base_image()), "BINARY=tpuscope".into()];
    build(context.path(), &workspace().join("packaging/Containerfile"), IMAGE, &arguments);
}

/// Fake sysfs and device nodes that both containers see.
fn fake_host() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("sidecar").tempdir().expect("a temporary folder");
    for chip in 0..2 {
        let function = dir.path().join(format!("sys/bus/pci/devices/0000:00:0{}.0", chip + 4));
        let group = dir.path().join(format!("sys/kernel/iommu_groups/{chip}"));
        std::fs::create_dir_all(&function).expect("writable");
        std::fs::create_dir_all(group).expect("writable");
        std::fs::create_dir_all(dir.path().join("dev/vfio")).expect("writable");
        std::fs::write(function.join("vendor"), "0x1ae0\n").expect("writable");
        std::fs::write(function.join("device"), "0x006f\n").expect("writable");
        std::os::unix::fs::symlink(
            format!("../../../../kernel/iommu_groups/{chip}"),
            function.join("iommu_group"),
        )
        .expect("writable");
        std::fs::write(dir.path().join(format!("dev/vfio/{chip}")), "").expect("writable");
    }
    metrics_files(dir.path());
    let destination = "[[destination]]\nname = 'shared'\nurl = 'file:///run/tpuscope/shared/{user}'\n";
    std::fs::write(dir.path().join("tpuscope.toml"), destination).expect("writable");
    // Made by root for a user of the containers that is not.
    let opened = Command::new("chmod").args(["-R", "a+rX"]).arg(dir.path()).status().expect("chmod runs");
    assert!(opened.success());
    remote_files(dir.path());
    dir
}

/// Where the sidecar serves other hosts.
const LISTEN: &str = "0.0.0.0:14393";
/// Its address, and that of the network from which it is reached.
const ADDRESS: &str = "10.78.0.2";
const OUTSIDE: &str = "10.78.0.1";
/// The user of the containers.
const USER: u32 = 10001;

/// The certificates of `[api.remote]`, which nobody but the user of the containers can read, and those of an operator.
fn remote_files(folder: &Path) {
    let certs = |words: &[&str]| {
        let ended = run(folder, &[&["certs"], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    certs(&["init", "ca"]);
    certs(&["issue", "ca", "--agent", ADDRESS, "--out", "."]);
    certs(&["issue", "ca", "--operator", "outside", "--out", "."]);
    let own = folder.join(ADDRESS);
    for file in ["", "cert.pem", "key.pem", "ca.pem"] {
        std::os::unix::fs::chown(own.join(file), Some(USER), Some(USER)).expect("the test runs as root");
    }
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&own.join("key.pem")), 0o600);
}

/// A network that is connected with that of the containers.
fn outside(workload: &Pod) -> NetNs {
    let pid = workload.inspect("{{.State.Pid}}").parse().expect("a number");
    let network = NetNs::new();
    network.link("pod", pid);
    network.ip(&format!("address add {OUTSIDE}/30 dev pod"));
    network.ip("link set pod up");
    for words in
        [&["address", "add", &format!("{ADDRESS}/30"), "dev", "eth0"][..], &["link", "set", "eth0", "up"]]
    {
        let ip = Command::new("nsenter").args(["-t", &pid.to_string(), "-n", "ip"]).args(words).status();
        assert!(ip.expect("nsenter runs").success(), "{words:?}");
    }
    network
}

/// The sidecar answers and captures for an operator who comes over the network.
fn is_reached_from_outside(network: &NetNs, sidecar: &Pod, host: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let remote = format!("{ADDRESS}:14393");
    let ask = |words: &[&str]| {
        let mut command = network.command(tpuscope());
        command.args(words).args(["--hosts", &remote, "--tls-dir"]).arg(host.join("outside"));
        command.current_dir(folder.path());
        let ended = start_as(command).end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}\n{}", sidecar.logs());
        ended
    };
    let status = ask(&["status"]);
    assert!(status.stdout.starts_with("1 host; 2 chips\n"), "{status:?}");
    let captured = ask(&["capture", "--duration", "500ms", "--session", "outside", "--json"]).json();
    assert_eq!(
        (&captured["complete"], &captured["parts"][0]["uid"]),
        (&true.into(), &USER.into()),
        "{captured}"
    );
    let part = captured["parts"][0]["file"].as_str().expect("a part");
    let part = folder.path().join("plugins/profile/outside").join(part);
    assert!(part.metadata().expect("it is there").len() > 0);
    let line = sidecar.logs().lines().find(|line| line.contains("session=outside")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("{}", sidecar.logs()));
    assert!(line.contains("operator") && line.contains(OUTSIDE), "{line}");
}

/// Where the sidecar serves a Prometheus, with TLS and a password.
const METRICS: &str = "127.0.0.1:14394";

/// The files of `api.metrics`, and a `tpu-env` that names one chip more than there are.
fn metrics_files(folder: &Path) {
    std::fs::create_dir(folder.join("tls")).expect("writable");
    certificates(&folder.join("tls"));
    let web = format!("tls_server_config: {{cert_file: server.crt, key_file: server.key}}\n{}", users());
    std::fs::write(folder.join("tls/web.yml"), web).expect("writable");
    std::fs::write(folder.join("tpu-env"), "TPU_CHIPS_PER_HOST_BOUNDS: '1,3,1'\n").expect("writable");
}

/// What curl gets of the page in the sidecar's network, which no other program reaches; its status code is the last line.
fn scrape(sidecar: &Pod, host: &Path, password: &str) -> String {
    let pid = sidecar.inspect("{{.State.Pid}}");
    let output = Command::new("nsenter")
        .args(["-t", &pid, "-n", "curl", "-s", "--compressed", "-w", "%{http_code}", "-u"])
        .arg(format!("prometheus:{password}"))
        .arg("--cacert")
        .arg(host.join("tls/ca.crt"))
        .arg(format!("https://{METRICS}/metrics"))
        .output()
        .expect("nsenter runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The metrics page, the same values on the command line, and their course.
fn is_scraped(sidecar: &Pod, host: &Path) {
    assert!(scrape(sidecar, host, "wrong").ends_with("401"));
    let page = wait_with(
        "a second chip's histogram and the host's series",
        LIMIT,
        || sidecar.logs(),
        || {
            let page = scrape(sidecar, host, "secret");
            page.contains("tpu_hlo_execution_seconds_bucket{chip=\"1\"").then_some(page)
        },
    );
    assert!(page.ends_with("200"), "{page}");
    for series in [
        "tpu_chips_expected{source=\"host\"} 3",
        "tpu_chip_up{chip=\"1\",source=\"host\"} 1",
        "tpu_chip_info{chip=\"0\",pci=\"0000:00:04\",type=\"v6e\",source=\"host\"} 1",
        "tpu_chip_owner_info{chip=\"0\",state=\"held\",",
        "tpu_hbm_used_bytes{chip=\"1\",core=\"1\",",
        "tpuscope_source_up{source=\"runtime\"} 1",
        "tpuscope_captures_total{result=\"complete\"} 0",
        "tpuscope_store_free_bytes ",
    ] {
        assert!(page.contains(&format!("\n{series}")), "{series} is missing in\n{page}");
    }
    let listed = |arguments: &[&str]| {
        let output = sidecar.exec(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let metrics = listed(&["tpuscope", "metrics", "tpu_chips_expected"]);
    assert!(metrics.lines().nth(1).is_some_and(|line| line.contains('3')), "{metrics}");
    let history = listed(&["tpuscope", "history", "tpu_hbm_used_bytes", "--chip", "1"]);
    assert!(history.contains("chip=\"1\""), "{history}");
    // The numbers of the chips are kept although the root is read-only.
    let kept = listed(&["cat", "/var/lib/tpuscope/chips.toml"]);
    assert!(kept.contains("0000:00:05"), "{kept}");
}

/// The session is at its destination, whole, and the catalog of the agent has it.
fn is_uploaded_and_kept(sidecar: &Pod) {
    let listed = |arguments: &[&str]| {
        let output = sidecar.exec(arguments);
        assert!(output.status.success(), "{output:?}\n{}", sidecar.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let folder = "/run/tpuscope/shared/10001/plugins/profile/pod";
    listed(&["diff", "-r", folder, "/var/lib/tpuscope/sessions/plugins/profile/pod"]);
    let uploads: Value =
        serde_json::from_str(&listed(&["tpuscope", "uploads", "list", "--json"])).expect("JSON");
    assert_eq!(uploads["uploads"][0]["state"], "done", "{uploads}");
    listed(&["tpuscope", "sessions", "pin", "pod"]);
    let sessions = listed(&["tpuscope", "sessions", "list", "--limit", "1", "--json"]);
    let sessions: Value = serde_json::from_str(&sessions).expect("JSON");
    assert_eq!(
        (&sessions["sessions"][0]["pinned"], &sessions["sessions"][0]["upload"]),
        (&true.into(), &"uploaded".into())
    );
    listed(&["test", "-s", "/var/lib/tpuscope/state.db"]);
    listed(&["tpuscope", "sessions", "list", "/run/tpuscope/shared/10001"]);
}

/// What podman executes in the sidecar and has to succeed; its standard output.
fn succeeds(sidecar: &Pod, arguments: &[&str]) -> String {
    let output = sidecar.exec(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", sidecar.logs());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Jobs, marks and ledgers in the sidecar: a command that registers itself, what a shell marks, and the neighbour's chips.
fn knows_jobs_and_where_their_time_goes(sidecar: &Pod) {
    let said = succeeds(sidecar, &["tpuscope", "run", "--name", "inside", "--", "cat", "/proc/self/comm"]);
    assert_eq!(said, "cat\n");
    let json = |arguments: &[&str]| {
        let text = succeeds(sidecar, arguments);
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let listed = wait_with(
        "the end of the command",
        LIMIT,
        || sidecar.logs(),
        || {
            let listed = json(&["tpuscope", "jobs", "list", "--json"]);
            let jobs = listed["jobs"].as_array()?;
            jobs.iter().any(|job| job["id"] == "inside" && job["state"] == "ended").then(|| listed.clone())
        },
    );
    let neighbour = listed["jobs"].as_array().expect("a list").iter().find(|job| job["kind"] == "process");
    let neighbour = neighbour.unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(
        (&neighbour["uid"], &neighbour["chips"], &neighbour["state"]),
        (&USER.into(), &serde_json::json!([0, 1]), &"running".into()),
        "{listed}"
    );
    for words in
        [&["JOB", "--start"][..], &["STEP", "--step", "0"], &["STEP", "--step", "1"], &["JOB", "--end"]]
    {
        succeeds(sidecar, &[&["tpuscope", "mark", "--strict", "--job", "inside"], words].concat());
    }
    let marked = succeeds(sidecar, &["tpuscope", "goodput", "--job", "inside"]);
    assert!(marked.starts_with("inside (exact, from marks): goodput "), "{marked}");
    let live = wait_with(
        "seconds of the neighbour",
        LIMIT,
        || sidecar.logs(),
        || {
            let live = json(&["tpuscope", "goodput", "--json"]);
            (live["jobs"][0]["known_seconds"].as_u64()? > 0).then_some(live)
        },
    );
    assert_eq!(live["jobs"][0]["key"]["id"], neighbour["id"], "{live}");
}

/// The sidecar records its neighbour in windows, and makes a session of them; it refuses what nothing would stop.
fn records_its_neighbour(sidecar: &Pod) {
    succeeds(sidecar, &["tpuscope", "recorder", "on"]);
    let refused = sidecar.exec(&["tpuscope", "recorder", "on", "--strategy", "drain"]);
    assert_eq!(refused.status.code(), Some(19), "{refused:?}");
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(says.contains("strategy drain is not available"), "{says}");
    wait_with(
        "a window of the recorder",
        LIMIT,
        || sidecar.logs(),
        || {
            let timeline = succeeds(sidecar, &["tpuscope", "recorder", "timeline", "--json"]);
            let timeline: Value = serde_json::from_str(&timeline).expect("JSON");
            (!timeline["processes"][0]["segments"].as_array()?.is_empty()).then_some(())
        },
    );
    let snapshot = ["tpuscope", "snapshot", "--last", "10m", "--session", "past", "--json"];
    let snapshot: Value = serde_json::from_str(&succeeds(sidecar, &snapshot)).expect("JSON");
    let part = &snapshot["parts"][0];
    assert_eq!((&snapshot["complete"], &part["uid"]), (&true.into(), &USER.into()), "{snapshot}");
    assert!(part["events"].as_u64() > Some(0) && part["recorded"][0].is_object(), "{part}");
    let shown = succeeds(sidecar, &["tpuscope", "sessions", "show", "past"]);
    assert!(shown.contains("steps"), "{shown}");
}

/// The main process of the sidecar is killed in a window, and nothing starts it again: the window ends by itself.
fn leaves_nothing_when_it_is_killed_in_a_window(network: &NetNs, sidecar: &Pod, workload: &Pod) {
    let status = succeeds(sidecar, &["tpuscope", "recorder", "status", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let next = status["processes"][0]["next"].as_str().expect("it is recorded");
    let next: jiff::Timestamp = next.parse().expect("a time");
    let inside = next + std::time::Duration::from_millis(500);
    wait_with("the window", LIMIT, String::new, || (jiff::Timestamp::now() >= inside).then_some(()));
    sidecar.kill();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = format!("{ADDRESS}:{PROFILER_PORT}");
    let capture = ["capture", "--target", &target, "--duration", "100ms", "--output"];
    wait_with(
        "the profiler to be free",
        LIMIT,
        || workload.logs(),
        || {
            let mut command = network.command(tpuscope());
            command.args(capture).arg(folder.path());
            (start_as(command).end().code == Some(0)).then_some(())
        },
    );
    assert_eq!(sidecar.inspect("{{.State.Running}}"), "false");
    assert_eq!(workload.inspect("{{.State.Running}}"), "true");
}

/// `-v` options that show folders to a container at their own paths.
fn shown(paths: &[String]) -> Vec<String> {
    paths.iter().flat_map(|path| ["-v".to_owned(), format!("{path}:{path}:ro")]).collect()
}

fn status(agent: &Pod) -> Option<Value> {
    let output = agent.exec(&["tpuscope", "status", "--json"]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("status prints JSON"))
}

#[test]
fn a_sidecar_without_root_samples_and_captures_its_neighbour_and_is_scraped() {
    image();
    let host = fake_host();
    let host_path = host.path().display().to_string();
    let chips = artifact("fake-tpu-host").display().to_string();
    let job = workspace().join("packaging/demo/job.py").display().to_string();
    let (mut options, python) = python();
    options.extend(shown(&[host_path.clone(), chips.clone(), job.clone()]));
    options.extend(
        ["--network=none", "--user=10001", "-e=JAX_PLATFORMS=cpu", "-e=TPU_RUNTIME_METRICS_PORTS=18431"]
            .map(str::to_owned),
    );
    options.push(format!("-e=TPUSCOPE_PROFILER_PORT={PROFILER_PORT}"));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let (first, second) = (format!("{host_path}/dev/vfio/0"), format!("{host_path}/dev/vfio/1"));
    let arguments = [
        python.as_str(),
        &job,
        PROFILER_PORT,
        &first,
        &second,
        "--",
        &chips,
        "--chips",
        "2",
        "--runtime",
        "127.0.0.1:18431",
    ];
    let workload = Pod::start("workload", &options, base_image(), &arguments);
    wait_with("the job", LIMIT, || workload.logs(), || workload.logs().contains("ready").then_some(()));

    let network = outside(&workload);
    let (pid, same_network) =
        (format!("--pid=container:{}", workload.name()), format!("--network=container:{}", workload.name()));
    let volume = format!("{host_path}:{host_path}:ro");
    let (sysfs, dev) = (
        format!("-e=TPUSCOPE_PATHS__SYSFS={host_path}/sys"),
        format!("-e=TPUSCOPE_PATHS__DEV={host_path}/dev"),
    );
    let config = format!("-e=TPUSCOPE_CONFIG={host_path}/tpuscope.toml");
    let (metrics, web_config, tpu_env) = (
        format!("-e=TPUSCOPE_API__METRICS={METRICS}"),
        format!("-e=TPUSCOPE_API__METRICS_WEB_CONFIG={host_path}/tls/web.yml"),
        format!("-e=TPUSCOPE_DEVICE__TPU_ENV={host_path}/tpu-env"),
    );
    let recorder =
        ["EVERY=5s", "WINDOW=2s", "MAX_WINDOW=2s"].map(|setting| format!("-e=TPUSCOPE_RECORDER__{setting}"));
    let file = |name: &str| format!("{host_path}/{ADDRESS}/{name}.pem");
    let remote = [
        format!("-e=TPUSCOPE_API__REMOTE__LISTEN={LISTEN}"),
        format!("-e=TPUSCOPE_API__REMOTE__CERT={}", file("cert")),
        format!("-e=TPUSCOPE_API__REMOTE__KEY={}", file("key")),
        format!("-e=TPUSCOPE_API__REMOTE__CLIENT_CA={}", file("ca")),
    ];
    let sidecar = Pod::start(
        "sidecar",
        &[
            &pid,
            &same_network,
            "--user=10001",
            "--read-only",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--tmpfs=/run/tpuscope:mode=0777",
            "--tmpfs=/var/lib/tpuscope:mode=0777",
            "-v",
            &volume,
            &sysfs,
            &dev,
            &config,
            &metrics,
            &web_config,
            &tpu_env,
            &remote[0],
            &remote[1],
            &remote[2],
            &remote[3],
            &recorder[0],
            &recorder[1],
            &recorder[2],
        ],
        IMAGE,
        &["agent"],
    );
    let seen = wait_with(
        "the neighbour's chips to be sampled",
        LIMIT,
        || sidecar.logs(),
        || {
            let status = status(&sidecar)?;
            (status["chips"][1]["hbm_used_bytes"].as_f64()? > 0.0).then_some(status)
        },
    );
    assert_eq!(seen["chips"].as_array().map(Vec::len), Some(2), "{seen}");
    assert_eq!(seen["owners"][0]["uid"], 10001, "{seen}");
    assert_eq!(seen["owners"][0]["chips"], serde_json::json!([0, 1]), "{seen}");

    is_scraped(&sidecar, host.path());
    is_reached_from_outside(&network, &sidecar, host.path());
    assert!(sidecar.exec(&["mkdir", "/run/tpuscope/shared"]).status.success());
    let capture = ["tpuscope", "capture", "--duration", "500ms", "--session", "pod", "--json"];
    let output = sidecar.exec(&[&capture[..], &["--to", "shared", "--wait-upload=60s"]].concat());
    assert!(output.status.success(), "{output:?}\n{}", sidecar.logs());
    is_uploaded_and_kept(&sidecar);
    let found = sidecar.exec(&["find", "/var/lib/tpuscope", "-name", "*.xplane.pb", "-size", "+0"]);
    // That of this capture, and that of the one from outside.
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 2, "{found:?}");
    knows_jobs_and_where_their_time_goes(&sidecar);
    records_its_neighbour(&sidecar);
    leaves_nothing_when_it_is_killed_in_a_window(&network, &sidecar, &workload);
    assert_eq!(workload.inspect("{{.State.Running}}"), "true");
}

/// `-v` and `-e` options that bring the venv's Python into a container, and its program.
fn python() -> (Vec<String>, String) {
    let python = PythonPeer::with_jax();
    let shown = python.folders().map(|(folder, there)| format!("{}:{there}:ro", folder.display()));
    let folders = shown.into_iter().flat_map(|volume| ["-v".to_owned(), volume]);
    let variables = PythonPeer::variables().map(|(name, value)| format!("-e={name}={value}"));
    (folders.chain(variables).collect(), python.program())
}
