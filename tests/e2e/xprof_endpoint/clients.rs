//! XProf's own clients against real JAX jobs.

use std::path::Path;

use fakes::{
    harness::peer,
    jax_job::{JaxJob, RunningJaxJob},
    profiler_probe::becomes_free,
};
use proto::tensorflow::profiler::XSpace;

use super::{XprofAgent, name, python, read, shown, traces, xprof_trace};

/// The names of the threads of the host.
fn threads(trace: &XSpace) -> Vec<&str> {
    let host = trace.planes.iter().find(|plane| plane.name == "/host:CPU").unwrap();
    host.lines.iter().map(|line| line.name.as_str()).collect()
}

fn only(logdir: &Path, file: &str) -> XSpace {
    let traces = traces(logdir);
    let names: Vec<String> = traces.iter().map(|trace| name(trace)).collect();
    assert_eq!(names, [file]);
    let seen = shown(&traces[0]);
    assert!(seen["trace_events"].as_u64().unwrap() > 10, "{seen}");
    read(&traces[0])
}

#[test]
fn clients_of_xprof_capture_a_process_and_keep_the_file_themselves() {
    let job = JaxJob::new().start();
    let xprof = XprofAgent::start(&[job.target()]);
    let file = format!("127.0.0.1_{}.xplane.pb", xprof.port);

    let logdir = tempfile::tempdir().unwrap();
    let output = xprof_trace(&xprof.at(), logdir.path());
    assert!(output.status.success(), "{output:?}\n{}", xprof.agent.log());
    let trace = only(logdir.path(), &file);
    assert!(threads(&trace).iter().all(|thread| !thread.contains('[')), "one process's bytes are unchanged");

    let logdir = tempfile::tempdir().unwrap();
    let folder = logdir.path().display().to_string();
    let port = xprof.port.to_string();
    let collected =
        python(&["-m", "jax.collect_profile", "--no_perfetto_link", "--log_dir", &folder, &port, "500"]);
    assert!(collected.status.success(), "{collected:?}\n{}", xprof.agent.log());
    only(logdir.path(), &file);

    let logdir = tempfile::tempdir().unwrap();
    let folder = logdir.path().display().to_string();
    let module = peer("mldiagnostics/google_cloud_mldiagnostics/commands/collect_profile.py");
    let module = module.display().to_string();
    let (hosts, to) = (["--hosts", "127.0.0.1"], ["--log_dir", &folder]);
    let arguments =
        [&[module.as_str()][..], &hosts, &["--port", &port, "--duration_in_ms", "500"], &to].concat();
    let collected = python(&arguments);
    assert!(collected.status.success(), "{collected:?}\n{}", xprof.agent.log());
    only(logdir.path(), &file);

    xprof.nothing_is_kept();
    becomes_free(&job.target());
}

#[test]
fn several_processes_are_one_trace_and_several_hosts_are_several() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let targets = jobs.each_ref().map(RunningJaxJob::target);
    let (both, second) = (XprofAgent::start(&targets), XprofAgent::start(&targets[1..]));

    let logdir = tempfile::tempdir().unwrap();
    let output = xprof_trace(&both.at(), logdir.path());
    assert!(output.status.success(), "{output:?}\n{}", both.agent.log());
    let trace = only(logdir.path(), &format!("127.0.0.1_{}.xplane.pb", both.port));
    let mut planes: Vec<&str> = trace.planes.iter().map(|plane| plane.name.as_str()).collect();
    planes.sort_unstable();
    let distinct = planes.len();
    planes.dedup();
    assert_eq!((planes.len(), trace.hostnames.len()), (distinct, 1), "{planes:?}");
    let threads = threads(&trace);
    for job in &jobs {
        let its = threads.iter().filter(|thread| thread.ends_with(&format!("_{}]", job.port())));
        assert!(its.count() > 0, "{threads:?}");
    }
    both.nothing_is_kept();

    let first = XprofAgent::start(&targets[..1]);
    let logdir = tempfile::tempdir().unwrap();
    let output = xprof_trace(&format!("{},{}", first.at(), second.at()), logdir.path());
    assert!(output.status.success(), "{output:?}\n{}", first.agent.log());
    let mut wanted = [&first, &second].map(|host| format!("127.0.0.1_{}.xplane.pb", host.port));
    wanted.sort();
    let names: Vec<String> = traces(logdir.path()).iter().map(|trace| name(trace)).collect();
    assert_eq!(names, wanted);
    targets.iter().for_each(|target| becomes_free(target));
}
