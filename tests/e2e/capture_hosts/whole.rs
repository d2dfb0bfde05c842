//! Captures in which every host takes part.

use fakes::{
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    jax_job::JaxJob,
    wait::until,
};

use super::{Cluster, hosts, list, reading, text, why};
use crate::{profiler_agent::Agent, schema::Schema};

#[test]
fn two_jobs_on_two_hosts_are_one_session_of_one_window() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let cluster = Cluster::of(&[("a", &[jobs[0].target()]), ("b", &[jobs[1].target()])]);
    let ended = cluster.capture("a,b", &["--duration", "500ms", "--session", "both", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    assert_eq!(report["complete"], true, "{report}");
    let manifest = cluster.manifest("both");
    assert_eq!(hosts(&manifest), (vec!["vm-a".into(), "vm-b".into()], vec![]));
    let nanoseconds = |time: &serde_json::Value| {
        let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
        time.as_nanosecond()
    };
    let start = nanoseconds(&manifest["window"]["start"]);
    for (host, given) in list(&manifest, "hosts").iter().zip(["a", "b"]) {
        let clock = &host["clock"];
        // One machine: the clocks are one.
        let (offset, bound) = (clock["offset_ns"].as_i64().unwrap(), clock["bound_ns"].as_u64().unwrap());
        assert!(offset.unsigned_abs() <= bound && bound < 1_000_000_000, "{clock}");
        let parts = list(host, "parts");
        assert_eq!((parts.len(), text(&parts[0], "file")), (1, format!("vm-{given}.xplane.pb")));
        let began = nanoseconds(&parts[0]["window"]["start"]);
        assert!(began >= start - i128::from(bound), "{began} {start}");
    }
    // The agents have the session too, and know it by its id.
    for host in ["a", "b"] {
        assert_eq!(cluster.agent(host).sessions(), ["both"]);
    }
    let shown = fakes::command::run(&cluster.out(), &["sessions", "show", "plugins/profile/both"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    reading::read_back(&cluster, "both");
}

#[test]
fn four_hosts_with_many_processes_keep_their_parts_apart() {
    let fakes: Vec<FakeProfiler> =
        (0..5).map(|seed| FakeProfiler::start(Mode::Trace(trace_of(3 << 20, seed)))).collect();
    let targets: Vec<String> = fakes.iter().map(FakeProfiler::target).collect();
    // Two of them have one name for their hosts.
    let mut cluster = Cluster::of(&[("a", &targets[0..2]), ("b", &targets[2..3])]);
    for (host, profilers) in [("c", &targets[3..4]), ("d", &targets[4..5])] {
        cluster.add(host, Agent::start_as("localhost", profilers, ""));
    }
    let ended = cluster.capture("a,b,c,d", &["--duration", "10ms", "--session", "four"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    for line in
        ["  a (vm-a): clock ", "  c (localhost): clock ", "  d: clock ", "  vm-b.xplane.pb: 3.00 MiB, "]
    {
        assert!(ended.stdout.contains(line), "{line} in {}", ended.stdout);
    }
    assert!(ended.stdout.ends_with("next: tpuscope sessions show ./plugins/profile/four\n"), "{ended:?}");
    let manifest = cluster.manifest("four");
    let (names, missing) = hosts(&manifest);
    assert_eq!((names, missing), (["d", "localhost", "vm-a", "vm-b"].map(str::to_owned).to_vec(), vec![]));
    let files: Vec<String> = list(&manifest, "hosts")
        .iter()
        .flat_map(|host| list(host, "parts"))
        .map(|part| text(part, "file"))
        .collect();
    assert_eq!(files.len(), 5);
    assert!(
        files.contains(&"d.xplane.pb".into()) && files.contains(&"localhost.xplane.pb".into()),
        "{files:?}"
    );
    for fake in &fakes {
        assert_eq!(fake.seen().profiles.len(), 1);
    }
    // All have the start that the manifest names, within what is known of their clocks.
    let starts: Vec<u64> = fakes
        .iter()
        .map(|fake| fake.seen().profiles[0].opts.as_ref().map(|options| options.start_timestamp_ns).unwrap())
        .collect();
    let window: jiff::Timestamp = text(&manifest["window"], "start").parse().unwrap();
    for start in starts {
        let off = i128::from(start).abs_diff(window.as_nanosecond());
        assert!(off < 1_000_000_000, "{start} {window}");
    }
}

#[test]
fn one_agent_under_two_names_takes_part_once() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let cluster = Cluster::of(&[("a", &[fake.target()])]);
    cluster.name("alias", &cluster.agent("a").home.path().join("agent.sock"));
    let ended = cluster.capture("a,alias", &["--duration", "10ms", "--session", "one"]);
    ended.failed(18, "the session lacks 1 host");
    assert!(
        ended.stdout.contains("missing: the whole host on alias: it has the same agent as a\n"),
        "{ended:?}"
    );
    let manifest = cluster.manifest("one");
    assert_eq!(hosts(&manifest), (vec!["vm-a".into()], vec!["alias".into()]));
    assert_eq!(why(&manifest, "alias"), "it has the same agent as a");
}

#[test]
fn agents_upload_their_parts_and_one_manifest_names_all() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let bucket = tempfile::tempdir().unwrap();
    let settings = |folder: &std::path::Path| {
        format!("[[destination]]\nname = 'shared'\nurl = 'file://{}'\n", folder.display())
    };
    let elsewhere = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new();
    let agent = |host: &str, number: usize, folder: &std::path::Path| {
        Agent::start_as(host, &[fakes[number].target()], &settings(folder))
    };
    cluster.add("a", agent("vm-a", 0, bucket.path()));
    cluster.add("b", agent("vm-b", 1, bucket.path()));
    let ended =
        cluster.capture("a,b", &["--duration", "10ms", "--session", "up", "--to", "shared", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let there = bucket.path().join("plugins/profile/up");
    assert!(text(&report, "folder").ends_with("/plugins/profile/up"), "{report}");
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(there.join("manifest.json")).unwrap()).unwrap();
    Schema::open("manifest").admits(&manifest);
    assert_eq!(hosts(&manifest), (vec!["vm-a".into(), "vm-b".into()], vec![]));
    for host in ["vm-a", "vm-b"] {
        assert!(there.join(format!("{host}.xplane.pb")).exists());
    }
    // Nothing is copied here.
    cluster.kept_nothing();
    // A host whose destination is elsewhere is refused before the window.
    cluster.add("c", agent("vm-c", 1, elsewhere.path()));
    let ended = cluster.capture("a,c", &["--duration", "10ms", "--session", "apart", "--to", "shared"]);
    ended.failed(18, "the session lacks 1 host");
    assert!(ended.stdout.contains("its destination is file://"), "{ended:?}");
    assert_eq!(fakes[1].seen().profiles.len(), 1);
    // One that the agents do not know is known to none.
    cluster.capture("a,b", &["--to", "nowhere"]).failed(2, "have no destination `nowhere`");
}

#[test]
fn a_destination_for_every_session_gets_a_session_of_each_host() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let bucket = tempfile::tempdir().unwrap();
    let settings = format!(
        "[[destination]]\nname = 'all'\nurl = 'file://{}'\nupload = 'always'\n",
        bucket.path().display()
    );
    let mut cluster = Cluster::new();
    for (host, fake) in ["a", "b"].into_iter().zip(&fakes) {
        cluster.add(host, Agent::start_as(&format!("vm-{host}"), &[fake.target()], &settings));
    }
    let ended = cluster.capture("a,b", &["--duration", "10ms", "--session", "both"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let there = bucket.path().join("plugins/profile");
    for host in ["vm-a", "vm-b"] {
        let folder = there.join(format!("both-{host}"));
        until("the manifest of the host", || folder.join("manifest.json").exists());
        let shown = fakes::command::run(&cluster.out(), &["sessions", "show", &folder.display().to_string()]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(folder.join(format!("{host}.xplane.pb")).exists());
    }
    assert!(!there.join("both").exists());
    assert!(!cluster.agent("a").log().contains("another session has this name"));
}

#[test]
fn a_destination_with_the_host_in_its_url_is_refused_before_the_window() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let bucket = tempfile::tempdir().unwrap();
    let settings =
        format!("[[destination]]\nname = 'each'\nurl = 'file://{}/{{host}}'\n", bucket.path().display());
    let mut cluster = Cluster::new();
    cluster.add("a", Agent::start_as("vm-a", &[fake.target()], &settings));
    let ended = cluster.capture("a", &["--duration", "10ms", "--to", "each", "--json"]);
    ended.failed(2, "the URL contains {host}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    assert_eq!(report["hosts"][0]["missing"]["kind"], "refused", "{report}");
    assert!(fake.seen().profiles.is_empty());
}

#[test]
fn a_session_that_cannot_be_uploaded_is_said_to_stay_with_its_agents() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let parent = tempfile::tempdir().unwrap();
    // Not mounted, as it were.
    let absent = parent.path().join("absent");
    let settings = format!("[[destination]]\nname = 'shared'\nurl = 'file://{}'\n", absent.display());
    let mut cluster = Cluster::new();
    for (host, fake) in ["a", "b"].into_iter().zip(&fakes) {
        cluster.add(host, Agent::start_as(host, &[fake.target()], &settings));
    }
    let arguments = ["--duration", "10ms", "--session", "up", "--to", "shared", "--wait-upload=1s"];
    let ended = cluster.capture("a,b", &arguments);
    ended.failed(20, "no whole session was made, and the agents of a and 1 more keep what they recorded");
    assert!(
        ended.stderr.contains("`tpuscope sessions rm up` on each of them removes it and ends its upload"),
        "{ended:?}"
    );
    assert_eq!(cluster.agent("a").sessions(), ["up"]);
}

#[test]
fn the_sessions_of_all_hosts_are_listed() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let cluster = Cluster::of(&[("a", &[fake.target()]), ("b", &[])]);
    let captured = cluster.capture("a", &["--duration", "10ms", "--session", "one"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let command = cluster.command();
    let list = |more: &[&str]| {
        let arguments = ["sessions", "list", "--hosts", "a,b,none", "--via-command", &command];
        fakes::command::run(&cluster.out(), &[&arguments, more].concat())
    };
    let page = list(&[]);
    assert_eq!(page.code, Some(18), "{page:?}");
    assert!(page.stdout.starts_with("3 hosts, 1 without an answer\n\nHOST  SESSION "), "{page:?}");
    assert!(page.stdout.contains("\na     one "), "{page:?}");
    let json = list(&["--json"]).json();
    Schema::open("sessions-list-hosts").admits(&json);
    assert_eq!(json["hosts"][1]["sessions"], serde_json::json!([]));
}
