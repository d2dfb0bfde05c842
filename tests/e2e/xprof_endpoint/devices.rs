//! Several processes with devices: one trace, whose devices are those of the whole host.

use fakes::{
    fake_host::FakeHost,
    fake_profiler::{FakeProfiler, Mode},
    harness::data,
    jax_job::free_port,
    running_agent::RunningAgent,
    wait::{LIMIT, wait_with},
};
use model::device::{Chip, Generation};
use proto::tensorflow::profiler::{XLine, XPlane, XSpace};

use super::{
    read,
    relay::Relay,
    request,
    rights::{block_on, profile},
    shown, traces, xprof_trace,
};

const DEVICE: &str = "/device:TPU:";

fn golden(session: &str) -> XSpace {
    read(&data().join("golden/xplane").join(session))
}

fn port(profiler: &FakeProfiler) -> u16 {
    profiler.target().rsplit(':').next().unwrap().parse().unwrap()
}

fn devices(trace: &XSpace) -> Vec<&XPlane> {
    let mut devices: Vec<&XPlane> =
        trace.planes.iter().filter(|plane| plane.name.starts_with(DEVICE)).collect();
    devices.sort_unstable_by_key(|plane| plane.name.as_str());
    devices
}

/// The lines of a plane: names, and the lengths of all events.
fn lines(plane: &XPlane) -> Vec<(&str, Vec<i64>)> {
    let lengths = |line: &XLine| line.events.iter().map(|event| event.duration_ps).collect();
    plane.lines.iter().map(|line| (line.name.as_str(), lengths(line))).collect()
}

/// The names of the threads.
fn threads(trace: &XSpace) -> Vec<&str> {
    let host = trace.planes.iter().find(|plane| plane.name == "/host:CPU").unwrap();
    host.lines.iter().map(|line| line.name.as_str()).collect()
}

#[test]
fn devices_are_counted_on_in_the_order_of_the_chips() {
    let one = golden("steady_1core/t1v-n-aaaa-w-0.xplane.pb");
    let four = golden("straggler_4core/t1v-n-bbbb-w-0.xplane.pb");
    let fakes = [&one, &four].map(|trace| FakeProfiler::start(Mode::Trace(trace.clone())));
    let mut host = FakeHost::with(Generation::V5e, 5);
    let chips = host.chips();
    let workload = |chips: &[Chip], profiler: &FakeProfiler| {
        let nodes: Vec<_> = chips.iter().flat_map(|chip| chip.nodes.clone()).collect();
        Relay::workload(&nodes, port(profiler))
    };
    // The process of the last chip starts first.
    let last = workload(&chips[4..], &fakes[0]);
    let first = workload(&chips[..4], &fakes[1]);
    host.show_only(&[first.pid(), last.pid()]);
    let at = format!("127.0.0.1:{}", free_port());
    let settings = format!("[workload]\nscan_interval = '250ms'\n[api]\nxprof = '{at}'\n");
    let agent = RunningAgent::start(&host, &settings);
    wait_with(
        "both processes",
        LIMIT,
        || agent.log(),
        || {
            let answer = block_on(profile(&at, request(10))).ok()?;
            (devices(&answer.xspace?).len() == 5).then_some(())
        },
    );

    let logdir = tempfile::tempdir().unwrap();
    let output = xprof_trace(&at, logdir.path());
    assert!(output.status.success(), "{output:?}\n{}", agent.log());
    let [file] = &traces(logdir.path())[..] else { panic!("{output:?}") };
    let joined = read(file);
    let found: Vec<_> = devices(&joined).iter().map(|plane| (plane.name.clone(), lines(plane))).collect();
    let (ones, fours) = (devices(&one), devices(&four));
    let wanted = fours.iter().chain(&ones).enumerate();
    assert_eq!(found, wanted.map(|(at, plane)| (format!("{DEVICE}{at}"), lines(plane))).collect::<Vec<_>>());

    let of = |trace: &XSpace, pid: u32| -> Vec<String> {
        threads(trace).iter().map(|thread| format!("{thread} [pid {pid}]")).collect()
    };
    let mut wanted = [of(&four, first.pid()), of(&one, last.pid())].concat();
    let mut threads = threads(&joined);
    wanted.sort_unstable();
    threads.sort_unstable();
    assert_eq!(threads, wanted);

    let shown = shown(file);
    for device in 0..5 {
        let name = format!("{DEVICE}{device}");
        let processes = shown["processes"].as_array().unwrap();
        let its = processes.iter().filter(|process| process.as_str().unwrap().ends_with(&name));
        assert_eq!(its.count(), 1, "{name}: {shown}");
    }
}
