//! A real JAX job recorded through continuous profiling, drain by drain, and merged: every step that lies wholly
//! inside a segment is there exactly once, every other one lies in a gap that the result names.
//!
//! `TPUSCOPE_MERGE_SECONDS` sets how long each job is recorded; 60 is the long form.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::schema::Schema;
use fakes::{
    command,
    harness::{peer, workspace},
    jax_job::{JaxJob, RunningJaxJob},
};
use prost::Message;
use proto::tensorflow::{
    GetSnapshotRequest, ProfileOptions, ProfileRequest, StopContinuousProfilingRequest,
    profiler::{XEvent, XLine, XPlane, XSpace, x_event, x_stat},
    profiler_service_client::ProfilerServiceClient,
};
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// A snapshot of a loaded machine takes its time.
const DEADLINE: Duration = Duration::from_secs(60);

fn recorded_for() -> Duration {
    let seconds = env::var("TPUSCOPE_MERGE_SECONDS").map_or(8, |text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds)
}

/// Profiles `job` continuously, and drains it every `interval` into a file of its own.
async fn record(job: &RunningJaxJob, interval: Duration, folder: &Path) -> Vec<PathBuf> {
    let channel =
        Endpoint::from_shared(format!("http://{}", job.target())).unwrap().timeout(DEADLINE).connect().await;
    let mut client = ProfilerServiceClient::new(channel.unwrap()).max_decoding_message_size(usize::MAX);
    let options = ProfileOptions { version: 1, host_tracer_level: 2, ..ProfileOptions::default() };
    let start = ProfileRequest { opts: Some(options), ..ProfileRequest::default() };
    client.start_continuous_profiling(start).await.unwrap();
    let drained = drain(&mut client, interval, folder).await;
    // The job would collect for ever; so this comes before any complaint.
    let stopped = client.stop_continuous_profiling(StopContinuousProfilingRequest {}).await;
    let files = drained.unwrap();
    stopped.unwrap();
    files
}

async fn drain(
    client: &mut ProfilerServiceClient<Channel>,
    interval: Duration,
    folder: &Path,
) -> Result<Vec<PathBuf>, Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    let mut pace = tokio::time::interval(interval);
    pace.tick().await;
    let drains = recorded_for().as_nanos().div_ceil(interval.as_nanos()).max(2);
    for drain in 0..drains {
        pace.tick().await;
        let answer = client.get_snapshot(GetSnapshotRequest::default()).await?.into_inner();
        let space = answer.xspace.ok_or("a snapshot without a trace")?;
        // Named so that their order is not the order of time.
        let file = folder.join(format!("{}.xplane.pb", 97 - drain % 97 + drain / 97 * 100));
        fs::write(&file, space.encode_to_vec())?;
        files.push(file);
    }
    Ok(files)
}

/// One step as the job itself saw it.
#[derive(Debug, Clone, Copy)]
struct Logged {
    number: i64,
    begin_ns: i64,
    end_ns: i64,
}

/// What the job logged up to the first step that began after `until_ns`.
fn logged(job: &RunningJaxJob, until_ns: i64) -> Vec<Logged> {
    let mut steps = Vec::new();
    loop {
        let line = job.next_line(DEADLINE).expect("the job goes on");
        let numbers: Vec<i64> = line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
        let step = Logged { number: numbers[0], begin_ns: numbers[1], end_ns: numbers[2] };
        steps.push(step);
        if step.begin_ns > until_ns {
            return steps;
        }
    }
}

/// The start and end of everything that took time on the thread that marks steps, in nanoseconds since the epoch.
fn events(space: &XSpace, start_ns: i64) -> Vec<(i64, i64)> {
    let lines = space.planes.iter().flat_map(|plane| plane.lines.iter().map(move |line| (plane, line)));
    let marks = |plane: &XPlane, event: &XEvent| plane.event_metadata[&event.metadata_id].name == "train";
    let lines = lines.filter(|(plane, line)| line.events.iter().any(|event| marks(plane, event)));
    // Instants (`ThreadpoolListener::Record`) are recorded by another recorder, which stops later.
    let lasts = |event: &&XEvent| event.duration_ps > 0;
    let events = lines.flat_map(|(_, line)| line.events.iter().filter(lasts).map(move |event| (line, event)));
    let time = |(line, event): (&XLine, &XEvent)| {
        let offset_ps = match event.data {
            Some(x_event::Data::OffsetPs(offset)) => offset,
            _ => 0,
        };
        let begin_ns = start_ns + line.timestamp_ns + offset_ps / 1000;
        (begin_ns, begin_ns + event.duration_ps / 1000)
    };
    events.map(time).collect()
}

/// Whether `step` ran where nothing shows that its thread was being recorded: the profiler notes a segment's start
/// before its recorders run and the end after each of them has stopped and been emptied, so that the segment is a
/// little shorter than it says.
fn at_the_edge(step: Logged, segment: (i64, i64), events: &[(i64, i64)]) -> bool {
    let recorded = |from: i64, to: i64| events.iter().any(|&(begin, end)| from <= begin && end <= to);
    !recorded(segment.0, step.begin_ns) || !recorded(step.end_ns, segment.1)
}

/// The start and end of every `train` marker by number, in nanoseconds since the epoch.
fn markers(space: &XSpace, start_ns: i64) -> BTreeMap<i64, Vec<(i64, i64)>> {
    let mut markers = BTreeMap::<_, Vec<_>>::new();
    for plane in &space.planes {
        for line in &plane.lines {
            for event in &line.events {
                let step_num = event.stats.iter().find(|stat| {
                    plane
                        .stat_metadata
                        .get(&stat.metadata_id)
                        .is_some_and(|metadata| metadata.name == "step_num")
                });
                let Some(x_stat::Value::Int64Value(number)) = step_num.and_then(|stat| stat.value.clone())
                else {
                    continue;
                };
                let offset_ps = match event.data {
                    Some(x_event::Data::OffsetPs(offset)) => offset,
                    _ => 0,
                };
                assert_eq!(plane.event_metadata[&event.metadata_id].name, "train");
                let begin_ns = start_ns + line.timestamp_ns + offset_ps / 1000;
                markers.entry(number).or_default().push((begin_ns, begin_ns + event.duration_ps / 1000));
            }
        }
    }
    markers
}

fn ns(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no time"))
}

/// `[from, to]` of each entry of a list of the report.
fn stretches(list: &Value) -> Vec<(i64, i64)> {
    list.as_array().unwrap().iter().map(|entry| (ns(&entry["start_ns"]), ns(&entry["stop_ns"]))).collect()
}

/// The gaps by which the report explains that `number` is missing; none where it does not say.
fn explained(report: &Value, number: i64) -> Option<Vec<usize>> {
    let missing = report["steps"][0]["missing"].as_array()?;
    let entry = missing.iter().find(|entry| (ns(&entry["first"])..=ns(&entry["last"])).contains(&number))?;
    let number = |value: &Value| usize::try_from(ns(value)).unwrap();
    let listed: Vec<_> = entry["gaps"].as_array()?.iter().map(number).collect();
    let more = listed.last().map_or(0..0, |last| last + 1..last + 1 + number(&entry["more_gaps"]));
    Some(listed.into_iter().chain(more).collect())
}

/// What the real xprof makes of the file.
fn opened(file: &Path) -> Value {
    let script = workspace().join("tests/scripts/xprof_tools.py");
    let output = Command::new(peer("xprof/bin/python")).arg(script).arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("xprof: {error}\n{text}"))
}

fn check(step_ms: u64, interval: Duration) {
    let folder = TempDir::new().unwrap();
    let job = JaxJob::new().step_ms(step_ms).log_steps().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let files = runtime.block_on(record(&job, interval, folder.path()));

    let mut arguments =
        vec!["sessions".into(), "merge".into(), "-o".into(), "merged.xplane.pb".into(), "--json".into()];
    arguments.extend(files.iter().map(|file| file.clone().into_os_string()));
    let ended = command::run(folder.path(), &arguments);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    Schema::open("sessions-merge").admits(&report);
    let segments = stretches(&report["segments"]);
    let gaps = stretches(&report["gaps"]);
    let whole = (segments[0].0, segments[segments.len() - 1].1);
    assert_eq!(segments.len(), files.len());
    assert_eq!(gaps.len(), files.len() - 1);

    let merged = folder.path().join("merged.xplane.pb");
    let space = XSpace::decode(&fs::read(&merged).unwrap()[..]).unwrap();
    let (events, markers) = (events(&space, whole.0), markers(&space, whole.0));
    let mut there = 0;
    for step in logged(&job, whole.1) {
        let found = markers.get(&step.number).map_or(&[][..], Vec::as_slice);
        let inside = segments.iter().position(|&(start, stop)| start <= step.begin_ns && step.end_ns <= stop);
        let edge = inside.filter(|&at| found.is_empty() && at_the_edge(step, segments[at], &events));
        if inside.is_some() && edge.is_none() {
            assert_eq!(found.len(), 1, "step {} of {step_ms} ms: {step:?} in {segments:?}", step.number);
            there += 1;
        }
        for &(begin, end) in found {
            assert!(step.begin_ns <= begin && end <= step.end_ns, "{step:?} is shown at {begin} to {end}");
        }
        if found.is_empty() && step.begin_ns >= whole.0 && step.end_ns <= whole.1 {
            let touched: Vec<_> = (0..gaps.len())
                .filter(|&gap| step.begin_ns <= gaps[gap].1 && step.end_ns >= gaps[gap].0)
                .collect();
            assert!(
                !touched.is_empty() || edge.is_some(),
                "{step:?} is missing and no gap of {gaps:?} cuts it"
            );
            if (markers.keys().min() < Some(&step.number)) && (Some(&step.number) < markers.keys().max()) {
                let named =
                    explained(&report, step.number).unwrap_or_else(|| panic!("{step:?} not in {report}"));
                assert!(
                    !named.is_empty() && touched.iter().all(|gap| named.contains(gap)),
                    "{step:?}: {named:?}, not {touched:?}"
                );
                let beside = |at| named.iter().any(|&gap| gap == at || gap + 1 == at);
                assert!(edge.is_none_or(beside), "{step:?} in segment {edge:?}: {named:?}");
            }
        }
    }
    let shortest = interval.as_millis() > 2 * u128::from(step_ms);
    assert!(there > 0 || !shortest, "no step of {step_ms} ms lies inside a segment of {interval:?}");
    assert!(markers.values().all(|found| found.len() == 1));

    let xprof = opened(&merged);
    assert!(xprof["overview"].as_u64() > Some(0), "{xprof}");
    assert!(xprof["trace_events"].as_u64() > Some(there), "{xprof}");
}

#[test]
fn every_step_of_a_recorded_job_is_merged_once_or_explained() {
    let seconds = Duration::from_secs;
    // Together, since the jobs mostly sleep; the last one cuts every step it has.
    let cases = [(10, seconds(1)), (100, seconds(2)), (3000, seconds(8)), (3000, seconds(2))];
    thread::scope(|scope| {
        let checks = cases.map(|(step_ms, interval)| scope.spawn(move || check(step_ms, interval)));
        for check in checks {
            if let Err(panic) = check.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
