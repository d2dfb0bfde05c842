//! Other versions of jaxlib: windows of all, continuous profiling only where it can be stopped.

use std::thread;

use super::{RecorderAgent, SHORT, jax, unique};

#[test]
fn jobs_of_older_jaxlibs_are_recorded_in_windows_and_never_continuously() {
    thread::scope(|scope| {
        for version in ["0.7.2", "0.9.2"] {
            scope.spawn(move || is_recorded(version));
        }
    });
}

fn is_recorded(version: &str) {
    let id = unique(&format!("jaxlib-{version}"));
    let mut job = jax(&id).jaxlib(version).start();
    let agent = RecorderAgent::start(SHORT);
    agent.record(&id);
    let windows = agent.windows(&id, 2);
    assert!(windows.iter().all(|window| window["steps"].as_u64() > Some(5)), "{version}: {windows:?}");
    let refused = agent.ask(&["recorder", "on", "--job", &id, "--strategy", "drain"]);
    refused.failed(19, "cannot stop");
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--json"]);
    assert_eq!(ended.code, Some(0), "{version}: {ended:?}");
    assert!(ended.json()["parts"][0]["events"].as_u64() > Some(0), "{version}: {ended:?}");
    assert!(job.alive(), "{version}");
}
