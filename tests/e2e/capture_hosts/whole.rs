//! Captures in which every host takes part.

use fakes::{
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    jax_job::JaxJob,
};

use super::{Cluster, hosts, list, text, why};
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
