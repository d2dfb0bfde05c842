//! XProf's client of continuous profiling switches the recorder, and its monitor shows the samples.

use fakes::{
    command,
    fake_host::FakeHost,
    jax_job::{JaxJob, free_port},
    running_agent::RunningAgent,
    wait::{LIMIT, wait_with},
};
use serde_json::Value;

use super::{name, python, read, traces};

const SETTINGS: &str = "[workload]\ndiscover = 'any'\nscan_interval = '250ms'\n[sampler]\ninterval = '250ms'\n\
                        [recorder]\nevery = '5s'\nwindow = '400ms'\nmax_window = '400ms'\n";
const CALL: &str = "
import sys
from xprof.api import continuous_profiling_snapshot as continuous
from xprof.convert import _pywrap_profiler_plugin as plugin
call, address = sys.argv[1], sys.argv[2]
if call == 'start':
    continuous.start_continuous_profiling(address, {'duration_ms': 1000})
elif call == 'stop':
    continuous.stop_continuous_profiling(address)
elif call == 'snapshot':
    continuous.get_snapshot(address, sys.argv[3])
else:
    print(plugin.monitor(address, 1000, 2, True))
";

#[test]
fn the_continuous_client_uses_the_recorder_and_the_monitor_the_samples() {
    let port = free_port();
    let job = JaxJob::new().port(port).variable("TPUSCOPE_PROFILER_PORT", &port.to_string());
    let job = job.variable("TPUSCOPE_JOB_ID", "xprof-continuous").start();
    let mut host = FakeHost::new();
    host.show_only(&[job.pid()]);
    let xprof = format!("127.0.0.1:{}", free_port());
    let agent = RunningAgent::start(&host, &format!("{SETTINGS}[api]\nxprof = '{xprof}'\n"));
    let call = |words: &[&str]| python(&[&["-c", CALL], words].concat());
    let recorder = || -> Value {
        let socket = agent.home().socket().display().to_string();
        command::run(agent.home().path(), &["recorder", "status", "--json", "--socket", &socket]).json()
    };
    let is_on = |on: bool| {
        let status = recorder();
        status["processes"].as_array().is_some_and(|all| all.iter().any(|one| one["recorded"] == on))
    };

    let started = call(&["start", &xprof]);
    assert!(started.status.success(), "{started:?}\n{}", agent.log());
    assert!(is_on(true), "{}", recorder());
    wait_with(
        "a window",
        LIMIT,
        || recorder().to_string(),
        || {
            let status = recorder();
            let all = status["processes"].as_array()?;
            all.iter().any(|one| one["segments"].as_u64().unwrap_or(0) > 0).then_some(())
        },
    );

    let logdir = tempfile::tempdir().unwrap();
    let taken = call(&["snapshot", &xprof, &logdir.path().display().to_string()]);
    assert!(taken.status.success(), "{taken:?}\n{}", agent.log());
    let [trace] = &traces(logdir.path())[..] else { panic!("{taken:?}\n{}", agent.log()) };
    assert_eq!(name(trace), format!("{}.xplane.pb", xprof.replace(':', "_")));
    assert!(read(trace).planes.iter().any(|plane| plane.name == "/host:CPU"));

    let shown = call(&["monitor", &xprof]);
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("Timestamp: ") && text.contains("No chip: "), "{text}");

    let stopped = call(&["stop", &xprof]);
    assert!(stopped.status.success(), "{stopped:?}\n{}", agent.log());
    assert!(is_on(false), "{}", recorder());
}
