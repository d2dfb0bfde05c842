//! The runtime metric services.

use std::sync::Arc;

use bytes::Bytes;
use fakes::{
    fake_grpc::{Manner, Reply, ServerAddress},
    fake_runtime::{
        FakeRuntime, NAMES, attribute, core, double_gauge, doubling, int, metric, pairs, per_device, series,
        text, workload,
    },
    wait::eventually_async,
};
use model::{
    catalog::of_origin,
    device::Generation,
    distribution::{Distribution, HistogramWindow},
    job::{Job, JobKind},
    registry::WorkloadRegistry,
    sample::{Origin, Sample, SampleValue},
    workload::{Address, EndpointKind, Owner, ProcessKey, Workloads},
};
use sampling::sources::{Reading, Tick, runtime::RuntimeSource};

use super::{chips, gauges, read, why};

#[test]
fn the_fake_serves_every_metric_of_the_catalog() {
    let served = workload(&[0], 1);
    for (metric, named) in of_origin(Origin::Runtime) {
        assert!(served.iter().any(|one| one.name == named.name), "{}: {}", metric.name, named.name);
    }
}

const USED: &str = "tpu_hbm_used_bytes";
const DUTY: &str = "tpu_tensorcore_duty_cycle_ratio";

fn at(fakes: &[&FakeRuntime]) -> Tick {
    on(fakes, Generation::V6e, 4)
}

fn on(fakes: &[&FakeRuntime], generation: Generation, count: u32) -> Tick {
    let addresses: Vec<_> = fakes.iter().map(|fake| Address::Tcp(fake.address())).collect();
    super::tick(EndpointKind::RuntimeMetrics, &addresses, &chips(generation, count))
}

fn distributions<'a>(reading: &'a Reading, metric: &str) -> Vec<(&'a Sample, &'a Distribution)> {
    let of = |sample: &&Sample| sample.metric.name == metric;
    let distribution = |sample: &'a Sample| match &sample.value {
        SampleValue::Distribution(distribution) => (sample, &**distribution),
        _ => panic!("{sample:?} is no distribution"),
    };
    reading.samples.iter().filter(of).map(distribution).collect()
}

/// The windows of a metric.
fn windows<'a>(reading: &'a Reading, metric: &str) -> Vec<(&'a Sample, &'a HistogramWindow)> {
    let all = distributions(reading, metric).into_iter();
    all.filter_map(|(sample, distribution)| Some((sample, distribution.window.as_ref()?))).collect()
}

/// What is counted since the start, of the first series of a metric.
fn counted(reading: &Reading, metric: &str) -> Vec<u64> {
    distributions(reading, metric)[0].1.histogram.counts.clone()
}

#[tokio::test]
async fn every_metric_with_its_unit_chip_and_core() {
    let fake = FakeRuntime::with_devices(&[4, 5, 6, 7]);
    fake.set(&per_device(NAMES[1], &[(4, 1000.0), (5, 2000.0), (6, 3000.0), (7, 4000.0)], true));
    fake.set(&per_device(NAMES[2], &[(4, 12.5), (5, 100.0), (6, 0.0), (7, 50.0)], false));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let first = read(&mut source, &mut tick).await;
    let core = |chip: u32, value: f64| (Some(chip), Some(chip + 4), value);
    assert_eq!(gauges(&first, USED), [core(0, 1000.0), core(1, 2000.0), core(2, 3000.0), core(3, 4000.0)]);
    assert_eq!(gauges(&first, DUTY), [core(0, 0.125), core(1, 1.0), core(2, 0.0), core(3, 0.5)]);
    assert!(windows(&first, "tpu_hlo_execution_seconds").is_empty(), "the past is no window");
    assert_eq!(first.absent, []);

    fake.set_all(workload(&[4, 5, 6, 7], 3).into_iter().skip(6));
    let second = read(&mut source, &mut tick).await;
    let timing = windows(&second, "tpu_hlo_execution_seconds");
    assert_eq!(timing.len(), 4);
    let (sample, window) = timing[0];
    assert_eq!(window.counts, [0, 2, 8, 18, 10, 2, 0]);
    assert_eq!(counted(&second, "tpu_hlo_execution_seconds"), [0, 3, 12, 27, 15, 3, 0]);
    assert_eq!(sample.labels.get("core_type"), Some(&"tensorcore".into()));
    assert_eq!(window.bounds[..3], [1e-6, 2e-6, 4e-6]);
    assert!((window.mean - 7.5e-6).abs() < 1e-12);
    let sizes: Vec<_> = windows(&second, "tpu_dcn_transfer_seconds")
        .iter()
        .map(|(sample, _)| sample.labels.get("buffer_size").unwrap().to_string())
        .collect();
    assert_eq!(sizes, ["2MB+", "8MB+", "64MB+"]);
    assert_eq!(windows(&second, "tpu_dcn_tcp_delivery_rate_bytes_per_second").len(), 1);
}

#[tokio::test]
async fn only_what_is_listed_is_asked_on_one_kept_connection() {
    let fake = FakeRuntime::with_devices(&[0]);
    fake.remove(NAMES[3]);
    fake.set(&per_device("tpu.runtime.something.new", &[(0, 1.0)], false));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    for _ in 0..5 {
        read(&mut source, &mut tick).await;
    }
    let asked = fake.asked();
    assert_eq!(asked.len(), NAMES.len() - 1);
    assert!(asked.values().all(|count| *count == 5), "{asked:?}");
    assert_eq!((fake.calls()["ListSupportedMetrics"], fake.connections()), (1, 1));
    let reading = read(&mut source, &mut tick).await;
    assert!(why(&reading, &fake.address().to_string()).contains("tpu.runtime.something.new"));
}

#[tokio::test]
async fn one_bad_metric_never_hides_the_others() {
    let fake = FakeRuntime::with_devices(&[0, 1]);
    fake.set_reply(NAMES[0], Reply::Status(13, "boom \u{1b}[31m".into()));
    fake.set_reply(NAMES[2], Reply::Hang);
    fake.set_reply(NAMES[3], Reply::Raw(Bytes::from_static(b"\x00\x00\x00\x00\x10\x01half")));
    fake.set_reply(NAMES[4], Reply::Message(vec![0; 300 << 10].into()));
    fake.set_reply(NAMES[5], Reply::Message(Bytes::from_static(b"\xff\xff\xff\xff")));
    fake.set_reply(NAMES[6], Reply::Status(5, "not found".into()));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, USED).len(), 2);
    for (name, says) in [
        (NAMES[0], "status 13: boom"),
        (NAMES[2], "no answer within 500 ms"),
        (NAMES[3], "should have 16 bytes and has 5"),
        (NAMES[4], "longer than 256 KiB"),
        (NAMES[5], "cannot be read"),
        (NAMES[6], "does not have it"),
    ] {
        let why = why(&reading, name);
        assert!(why.contains(says) && !why.contains('\u{1b}'), "{name}: {why}");
    }
    // Repaired, they come back by themselves.
    fake.set_all(workload(&[0, 1], 1).into_iter().take(5));
    eventually_async("all metrics", async || {
        let reading = read(&mut source, &mut tick).await;
        let all = gauges(&reading, DUTY).len() == 2 && gauges(&reading, "tpu_hbm_total_bytes").len() == 2;
        if all { Ok(()) } else { Err(format!("{:?}", reading.absent)) }
    })
    .await;
}

#[tokio::test]
async fn no_data_is_absent_and_never_zero() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let idle = read(&mut source, &mut tick).await;
    assert_eq!(idle.samples, []);
    assert!(
        why(&idle, &fake.address().to_string()).contains("its list of metrics is empty, as seen since 2026-")
    );
    // A program is loaded: some metrics come without values, one with a number that is none.
    fake.set(&metric(NAMES[1], Vec::new()));
    fake.set(&per_device(NAMES[2], &[(0, f64::NAN), (1, 50.0)], false));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, USED), []);
    assert_eq!(gauges(&reading, DUTY).iter().map(|gauge| gauge.2).collect::<Vec<_>>(), [0.5]);
    assert!(why(&reading, NAMES[2]).contains("not a finite number"));
    assert!(why(&reading, NAMES[1]).contains("listed, and its answers have no value, as seen since 2026-"));
    fake.set(&per_device(NAMES[1], &[(0, 5.0)], true));
    assert_eq!(gauges(&read(&mut source, &mut tick).await, USED).len(), 1);
    fake.set(&metric(NAMES[1], Vec::new()));
    let reading = read(&mut source, &mut tick).await;
    assert!(why(&reading, NAMES[1]).contains("its answers have had no value since 2026-"));
}

#[tokio::test]
async fn a_list_of_unknown_names_is_no_empty_list() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    fake.set(&per_device("tpu.runtime.something.new", &[(0, 1.0)], false));
    let reading = read(&mut RuntimeSource::default(), &mut at(&[&fake])).await;
    assert!(
        why(&reading, &fake.address().to_string()).contains("only names that are unknown to this release")
    );
}

#[tokio::test]
async fn a_runtime_that_is_too_old_is_told_from_one_that_lacks_a_metric() {
    let fake = FakeRuntime::with_devices(&[0]);
    fake.set_reply(NAMES[1], Reply::Status(12, "unknown method".into()));
    fake.set_reply(NAMES[2], Reply::Status(5, "not found".into()));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert!(why(&reading, NAMES[1]).contains("too old"));
    assert!(why(&reading, NAMES[2]).contains("does not have it"));
}

/// Totals, ids and first zeros as real hosts serve them: a v6e host of a larger slice, a v5p host.
#[tokio::test]
async fn a_real_host_has_global_ids_with_gaps_and_odd_totals() {
    for (generation, ids, total) in [
        (Generation::V6e, &[0, 1, 4, 5][..], 33_550_233_600.0),
        (Generation::V6e, &[404, 405, 412, 413], 33_550_237_696.0),
        (Generation::V6e, &[0, 1, 4, 5, 8, 9, 12, 13], 33_550_233_600.0),
        (Generation::V5p, &[13, 5, 4, 12], 102_803_439_616.0),
    ] {
        let count = u32::try_from(ids.len()).unwrap();
        let each = |value: f64| ids.iter().map(|id| (*id, value)).collect::<Vec<(i64, f64)>>();
        let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
        fake.set(&per_device(NAMES[0], &each(total), true));
        fake.set(&per_device(NAMES[1], &each(0.0), true));
        fake.set(&per_device(NAMES[2], &each(0.0), false));
        let (mut source, mut tick) = (RuntimeSource::default(), on(&[&fake], generation, count));
        let first = read(&mut source, &mut tick).await;
        // The ids are job-wide: their order on the host tells the chip.
        let mut chips: Vec<_> = gauges(&first, "tpu_hbm_total_bytes")
            .iter()
            .map(|(chip, core, value)| (chip.unwrap(), core.unwrap(), *value))
            .collect();
        chips.sort_by_key(|chip| chip.0);
        let mut rising: Vec<u32> = ids.iter().map(|id| u32::try_from(*id).unwrap()).collect();
        rising.sort_unstable();
        let want: Vec<_> = (0..).zip(rising).map(|(chip, id)| (chip, id, total)).collect();
        assert_eq!(chips, want);
        // 0 of 0 in the first seconds is not idleness.
        assert_eq!((gauges(&first, USED), gauges(&first, DUTY)), (vec![], vec![]));
        assert!(why(&first, NAMES[1]).contains("first seconds"), "{:?}", first.absent);
        assert!(why(&first, NAMES[2]).contains("first seconds"), "{:?}", first.absent);
        fake.set(&per_device(NAMES[1], &each(1.35e9), true));
        let later = read(&mut source, &mut tick).await;
        assert_eq!((gauges(&later, USED).len(), gauges(&later, DUTY).len()), (ids.len(), ids.len()));
        assert_eq!(later.absent, []);
    }
}

/// A step of a job allocation, or a container of a pod, that follows another one: same job, same attempt, same port.
#[tokio::test]
async fn first_zeros_follow_the_process_not_the_job() {
    let fake = FakeRuntime::with_devices(&[0]);
    fake.set(&per_device(NAMES[1], &[(0, 0.0)], true));
    fake.set(&per_device(NAMES[2], &[(0, 0.0)], false));
    let mut source = RuntimeSource::default();
    let owned_by = |tick: &mut Tick, pid: u32| {
        let endpoints = tick.host.workloads.endpoints.clone();
        let job = Job { kind: JobKind::Slurm, id: "77".into(), attempt: Some(0), ..Job::default() };
        let owner = Owner { process: ProcessKey { pid, start_ticks: 0 }, job, endpoints, ..Owner::default() };
        let mut registry = WorkloadRegistry::default();
        registry.observe(std::slice::from_ref(&owner), tick.at);
        tick.host.running = registry.running().cloned().collect();
        tick.host.workloads = Arc::new(Workloads { owners: vec![owner], ..Workloads::default() });
    };
    // The first process started at boot: the agent came later, and the process is idle.
    let mut tick = at(&[&fake]);
    owned_by(&mut tick, 100);
    let old = read(&mut source, &mut tick).await;
    assert_eq!((gauges(&old, USED).len(), gauges(&old, DUTY).len()), (1, 1), "{:?}", old.absent);
    let mut next = at(&[&fake]);
    next.at = tick.at;
    owned_by(&mut next, 200);
    let new = read(&mut source, &mut next).await;
    assert_eq!((gauges(&new, USED).len(), gauges(&new, DUTY).len()), (0, 0));
    assert!(why(&new, NAMES[1]).contains("first seconds"), "{:?}", new.absent);
}

#[tokio::test]
async fn two_values_for_two_chips_of_two_cores_are_one_for_each() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    fake.set(&per_device(NAMES[2], &[(1, 20.0), (0, 10.0)], false));
    let (mut source, mut tick) = (RuntimeSource::default(), on(&[&fake], Generation::Tpu7x, 2));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, DUTY), [(Some(1), None, 0.2), (Some(0), None, 0.1)]);
    // Also where another metric has a value for each core.
    fake.set(&per_device(NAMES[1], &[(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)], true));
    let reading = read(&mut RuntimeSource::default(), &mut tick).await;
    assert_eq!(gauges(&reading, DUTY), [(Some(1), None, 0.2), (Some(0), None, 0.1)]);
    let chips: Vec<_> = gauges(&reading, USED).iter().map(|gauge| gauge.0).collect();
    assert_eq!(chips, [Some(0), Some(0), Some(1), Some(1)]);
}

#[tokio::test]
async fn lists_of_different_lengths_keep_their_own_cores() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    fake.set(&per_device(NAMES[0], &[(0, 32.0), (1, 32.0), (2, 32.0), (3, 32.0)], true));
    fake.set(&per_device(NAMES[1], &[(3, 4.0), (1, 2.0)], true));
    fake.set(&metric(NAMES[5], vec![series(Some(core(2, true)), double_gauge(7.0))]));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, "tpu_hbm_total_bytes").len(), 4);
    assert_eq!(gauges(&reading, USED), [(Some(3), Some(3), 4.0), (Some(1), Some(1), 2.0)]);
    assert_eq!(gauges(&reading, "tpu_hlo_queue_size"), [(Some(2), Some(2), 7.0)]);
}

#[tokio::test]
async fn on_v3_a_duty_cycle_is_a_chips_and_memory_a_cores() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    let memory: Vec<_> = (0..8).map(|core| (core, 16.0)).collect();
    fake.set(&per_device(NAMES[1], &memory, true));
    fake.set(&per_device(NAMES[2], &[(0, 10.0), (1, 20.0), (2, 30.0), (3, 40.0)], false));
    let (mut source, mut tick) = (RuntimeSource::default(), on(&[&fake], Generation::V3, 4));
    let reading = read(&mut source, &mut tick).await;
    let duty = |chip: u32, value: f64| (Some(chip), None, value);
    assert_eq!(gauges(&reading, DUTY), [duty(0, 0.1), duty(1, 0.2), duty(2, 0.3), duty(3, 0.4)]);
    let chips: Vec<_> = gauges(&reading, USED).iter().map(|gauge| gauge.0.unwrap()).collect();
    assert_eq!(chips, [0, 0, 1, 1, 2, 2, 3, 3]);
}

#[tokio::test]
async fn a_chip_is_not_named_when_it_cannot_be_known() {
    let fake = FakeRuntime::with_devices(&[0, 1, 2]);
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert!(gauges(&reading, USED).iter().all(|(chip, core, _)| chip.is_none() && core.is_some()));
}

#[tokio::test]
async fn a_workload_that_starts_again_gives_a_window_of_its_new_counts() {
    let fake = FakeRuntime::with_devices(&[0]);
    let timing = |counts: &[i64]| metric(NAMES[6], vec![series(Some(core(0, false)), doubling(counts, 3.0))]);
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let mut seen = Vec::new();
    for counts in [[0, 50, 50, 0], [0, 60, 55, 0], [0, 2, 1, 0], [0, 2, 1, 0]] {
        fake.set(&timing(&counts));
        let reading = read(&mut source, &mut tick).await;
        seen.extend(
            windows(&reading, "tpu_hlo_execution_seconds").into_iter().map(|(_, it)| it.counts.clone()),
        );
    }
    assert_eq!(seen, [[0, 10, 5, 0], [0, 2, 1, 0], [0, 0, 0, 0]]);
}

#[tokio::test]
async fn series_of_one_buffer_size_are_added_bucket_by_bucket() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    let sized = |size: &str, direction: &str, counts: &[i64]| {
        let labels = pairs(&[("direction", text(direction)), ("buffer-size", text(size))]);
        series(Some(attribute("labels", labels)), doubling(counts, 2.0))
    };
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let mut reading = Reading::default();
    for round in [1, 2] {
        let series = vec![
            sized("8MB+", "send", &[0, round, 0, 0]),
            sized("8MB+", "receive", &[0, round, 4 * round, 0]),
            sized("2MB+", "send", &[round, 0, 0, 0]),
        ];
        fake.set(&metric(NAMES[7], series));
        reading = read(&mut source, &mut tick).await;
    }
    let found: Vec<_> = windows(&reading, "tpu_dcn_transfer_seconds")
        .into_iter()
        .map(|(sample, window)| {
            (sample.labels.get("buffer_size").unwrap().to_string(), window.counts.clone())
        })
        .collect();
    assert_eq!(found, [("8MB+".to_owned(), vec![0, 2, 4, 0]), ("2MB+".to_owned(), vec![1, 0, 0, 0])]);
}

#[tokio::test]
async fn a_port_that_answers_for_all_counts_no_device_twice() {
    let (whole, part) = (FakeRuntime::with_devices(&[0, 1, 2, 3]), FakeRuntime::with_devices(&[2, 3]));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&whole, &part]));
    read(&mut source, &mut tick).await;
    whole.set_all(workload(&[0, 1, 2, 3], 2));
    part.set_all(workload(&[2, 3], 2));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, USED).len(), 4);
    assert_eq!(windows(&reading, "tpu_dcn_tcp_min_rtt_seconds")[0].1.counts, [0, 0, 0, 2, 1, 0]);
}

#[tokio::test]
async fn ports_with_a_part_each_make_a_whole() {
    let fakes: Vec<_> = (0..4).map(|device| FakeRuntime::with_devices(&[device])).collect();
    let (mut source, mut tick) = (RuntimeSource::default(), at(&fakes.iter().collect::<Vec<_>>()));
    read(&mut source, &mut tick).await;
    for (device, fake) in (0..).zip(&fakes) {
        fake.set_all(workload(&[device], 2));
    }
    let reading = read(&mut source, &mut tick).await;
    let cores: Vec<_> = gauges(&reading, USED).iter().map(|gauge| gauge.1.unwrap()).collect();
    assert_eq!(cores, [0, 1, 2, 3]);
    // What is not of a device is the sum over the processes of the job.
    assert_eq!(windows(&reading, "tpu_dcn_tcp_min_rtt_seconds")[0].1.counts, [0, 0, 0, 8, 4, 0]);
}

#[tokio::test]
async fn a_histogram_survives_a_late_answer_and_starts_again_with_its_workload() {
    let metric = "tpu_dcn_tcp_min_rtt_seconds";
    let (steady, late) = (FakeRuntime::with_devices(&[0]), FakeRuntime::with_devices(&[1]));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&steady, &late]));
    assert_eq!(counted(&read(&mut source, &mut tick).await, metric), [0, 0, 0, 4, 2, 0]);
    let since = |reading: &Reading| distributions(reading, metric)[0].1.histogram.since;
    let start = tick.at;
    steady.set_all(workload(&[0], 2));
    late.set_reply(NAMES[13], Reply::Status(13, "busy".into()));
    let reading = read(&mut source, &mut tick).await;
    // The sum holds what the silent one last counted: a fall would look like a restart.
    assert_eq!((counted(&reading, metric), since(&reading)), (vec![0, 0, 0, 6, 3, 0], start));
    assert_eq!(windows(&reading, metric)[0].1.counts, [0, 0, 0, 2, 1, 0]);
    late.set_all(workload(&[1], 5));
    let reading = eventually_async("its answer", async || {
        let reading = read(&mut source, &mut tick).await;
        let now = counted(&reading, metric);
        if now == [0, 0, 0, 6, 3, 0] { Err(format!("{now:?}")) } else { Ok(reading) }
    });
    let reading = reading.await;
    assert_eq!((counted(&reading, metric), since(&reading)), (vec![0, 0, 0, 14, 7, 0], start));
    // Both start again: so does the histogram.
    steady.set_all(workload(&[0], 1));
    late.set_all(workload(&[1], 1));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!((counted(&reading, metric), since(&reading)), (vec![0, 0, 0, 4, 2, 0], tick.at));
}

#[tokio::test]
async fn what_hangs_or_speaks_nonsense_takes_nothing_from_the_others() {
    let (silent, nonsense) = (FakeRuntime::with_devices(&[0]), FakeRuntime::with_devices(&[1]));
    silent.set_manner(Manner::Silent);
    nonsense.set_manner(Manner::Garbage);
    let good = FakeRuntime::with_devices(&[2]);
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&silent, &nonsense, &good]));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, USED).len(), 1);
    assert!(why(&reading, &silent.address().to_string()).contains("no answer within 500 ms"));
    assert!(why(&reading, &nonsense.address().to_string()).contains("another service than libtpu's"));
}

#[tokio::test]
async fn an_endpoint_that_appears_later_is_picked_up_within_seconds() {
    let gone = FakeRuntime::with_devices(&[0]);
    let address = gone.address();
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&gone]));
    drop(gone);
    for _ in 0..20 {
        let reading = read(&mut source, &mut tick).await;
        assert!(why(&reading, &address.to_string()).contains("nothing listens there now"));
    }
    let back = FakeRuntime::start(ServerAddress::Tcp(address));
    back.set_all(workload(&[0], 1));
    eventually_async("the endpoint to be found again", async || {
        let reading = read(&mut source, &mut tick).await;
        if reading.samples.is_empty() { Err(format!("{:?}", reading.absent)) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn a_workload_that_ends_and_comes_back_is_asked_for_its_list_again() {
    let first = FakeRuntime::with_devices(&[0, 1]);
    let address = first.address();
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&first]));
    assert_eq!(gauges(&read(&mut source, &mut tick).await, USED).len(), 2);
    drop(first);
    let second = FakeRuntime::start(ServerAddress::Tcp(address));
    second.set(&per_device(NAMES[2], &[(0, 10.0)], false));
    let reading = eventually_async("the new workload", async || {
        let reading = read(&mut source, &mut tick).await;
        if gauges(&reading, DUTY).is_empty() { Err(format!("{:?}", reading.absent)) } else { Ok(reading) }
    })
    .await;
    assert_eq!(reading.samples.len(), 1);
    assert_eq!(second.asked().keys().collect::<Vec<_>>(), [NAMES[2]]);
}

#[tokio::test]
async fn an_unreachable_endpoint_is_explained_and_left_alone() {
    let fake = FakeRuntime::with_devices(&[0]);
    let mut tick = at(&[&fake]);
    let mut workloads = (*tick.host.workloads).clone();
    workloads.endpoints[0].unreachable = Some("it is in another network namespace".into());
    tick.host.workloads = Arc::new(workloads);
    let reading = read(&mut RuntimeSource::default(), &mut tick).await;
    assert_eq!(why(&reading, &fake.address().to_string()), "it is in another network namespace");
    assert_eq!(fake.connections(), 0);
}

#[tokio::test]
async fn a_libtpu_without_the_list_is_tried_name_by_name() {
    let fake = FakeRuntime::with_devices(&[0]);
    fake.set_list(Some(Reply::Status(12, "unimplemented".into())));
    fake.remove(NAMES[5]);
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, USED).len(), 1);
    assert!(why(&reading, NAMES[5]).contains("does not have it"));
    read(&mut source, &mut tick).await;
    assert_eq!(fake.asked()[NAMES[5]], 1, "what it lacks is not asked again at once");
}

#[tokio::test]
async fn cardinality_is_bounded() {
    let fake = FakeRuntime::start(ServerAddress::Tcp("127.0.0.1:0".parse().unwrap()));
    let one = |device: i64| series(Some(attribute("device-id", int(device))), double_gauge(1.0));
    fake.set(&metric(NAMES[2], (0..2000).map(one).collect()));
    let (mut source, mut tick) = (RuntimeSource::default(), at(&[&fake]));
    let reading = read(&mut source, &mut tick).await;
    assert_eq!(gauges(&reading, DUTY).len(), 512);
    assert!(why(&reading, NAMES[2]).contains("1488 series beyond the first 512 are ignored"));
}
