//! `api.xprof`: XProf's own clients capture a whole host through the agent.

mod bad_input;
mod browser;
mod clients;
mod devices;
mod recorded;
mod relay;
mod rights;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use fakes::{
    harness::{peer, tpuscope, workspace},
    jax_job::free_port,
};
use prost::Message;
use proto::tensorflow::{ProfileOptions, ProfileRequest, profiler::XSpace};
use serde_json::Value;

use crate::profiler_agent::Agent;

/// An agent that serves clients of XProf, and its address for them.
struct XprofAgent {
    agent: Agent,
    port: u16,
}

impl XprofAgent {
    fn start(profilers: &[String]) -> Self {
        Self::start_with(profilers, &[])
    }

    /// One with these further variables.
    fn start_with(profilers: &[String], variables: &[&str]) -> Self {
        let port = free_port();
        let mut words = vec!["env".to_owned(), format!("TPUSCOPE_API__XPROF=127.0.0.1:{port}")];
        words.extend(variables.iter().map(ToString::to_string));
        words.push(tpuscope().display().to_string());
        Self { agent: Agent::start_by(&words, "", profilers, ""), port }
    }

    fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Nothing of a capture is left here.
    fn nothing_is_kept(&self) {
        fakes::wait::until("no session to be kept", || {
            self.agent.sessions().is_empty() && self.agent.staged().is_empty()
        });
    }
}

/// A process; killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program of the Python with XProf.
fn python(arguments: &[&str]) -> Output {
    let mut command = Command::new(peer("xprof/bin/python"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Captures with XProf's own client for half a second.
fn xprof_trace(targets: &str, logdir: &Path) -> Output {
    let script = workspace().join("benches/scripts/xprof_trace.py").display().to_string();
    python(&[&script, targets, &logdir.display().to_string(), "500"])
}

/// The traces in a logdir, by name.
fn traces(logdir: &Path) -> Vec<PathBuf> {
    let Ok(sessions) = fs::read_dir(logdir.join("plugins/profile")) else { return Vec::new() };
    let files = sessions.flat_map(|session| fs::read_dir(session.unwrap().path()).unwrap());
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "pb"));
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn read(trace: &Path) -> XSpace {
    XSpace::decode(&fs::read(trace).unwrap()[..]).unwrap()
}

/// What the real XProf makes of a trace.
fn shown(trace: &Path) -> Value {
    let script = workspace().join("tests/scripts/xprof_tools.py").display().to_string();
    let output = python(&[&script, &trace.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A request as a stub sends it that wants the trace in the answer.
fn request(duration_ms: u64) -> ProfileRequest {
    ProfileRequest {
        duration_ms,
        emit_xspace: true,
        session_id: "asked".to_owned(),
        opts: Some(ProfileOptions {
            version: 1,
            host_tracer_level: 2,
            duration_ms,
            ..ProfileOptions::default()
        }),
        ..ProfileRequest::default()
    }
}
