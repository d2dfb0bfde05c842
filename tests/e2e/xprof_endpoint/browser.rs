//! The CAPTURE PROFILE button of a real XProf page in a real browser.

use std::{
    net::TcpStream,
    process::{Command, Stdio},
};

use fakes::{
    harness::{peer, workspace},
    jax_job::{JaxJob, free_port},
    wait::until,
};

use super::{Killed, XprofAgent, name, python, shown, traces};

#[test]
fn the_button_of_xprofs_page_captures_the_host() {
    let job = JaxJob::new().start();
    let xprof = XprofAgent::start(&[job.target()]);
    let logdir = tempfile::tempdir().unwrap();
    let (port, worker) = (free_port(), free_port());
    let mut server = Command::new(peer("xprof/bin/xprof"));
    server.args(["--port", &port.to_string(), "--grpc_port", &worker.to_string(), "--logdir"]);
    server.arg(logdir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Killed(server.spawn().unwrap());
    until("XProf's page", || TcpStream::connect(("127.0.0.1", port)).is_ok());

    let script = workspace().join("tests/scripts/xprof_button.py").display().to_string();
    let screenshot = logdir.path().join("page.png").display().to_string();
    let page = format!("http://127.0.0.1:{port}/");
    let pressed = python(&[&script, &page, &xprof.at(), &screenshot]);
    assert!(pressed.status.success(), "{pressed:?}\n{}", xprof.agent.log());
    let said = String::from_utf8_lossy(&pressed.stdout).into_owned();
    assert!(said.contains("Capture profile successfully"), "{said}\n{}", xprof.agent.log());
    let [trace] = &traces(logdir.path())[..] else { panic!("{said}\n{}", xprof.agent.log()) };
    assert_eq!(name(trace), format!("127.0.0.1_{}.xplane.pb", xprof.port));
    assert!(shown(trace)["trace_events"].as_u64().unwrap() > 10);
}
