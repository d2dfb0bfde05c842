//! A process of a Slurm job that holds chips, with metric services whose values a test sets.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use model::device::Chip;
use serde_json::Value;

use crate::{harness::artifact, jax_job::free_port};

/// The ports of the services of a [`ScriptedJob`], which are the same after a restart of it.
#[derive(Debug, Clone, Copy)]
pub struct ScriptedPorts {
    runtime: u16,
    orbax: u16,
}

impl ScriptedPorts {
    /// Ports that nobody listens on now.
    pub fn free() -> Self {
        Self { runtime: free_port(), orbax: free_port() }
    }
}

/// The process; killed when dropped.
#[derive(Debug)]
pub struct ScriptedJob {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl ScriptedJob {
    /// Starts a process of the job with this id that holds these chips.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(id: &str, chips: &[Chip], ports: ScriptedPorts) -> Self {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new(artifact("fake-tpu-host"));
        command.arg("--scripted").args(["--chips", &chips.len().to_string()]);
        command.args(["--runtime", &at(ports.runtime), "--orbax", &at(ports.orbax)]);
        for node in chips.iter().flat_map(|chip| &chip.nodes) {
            command.arg("--hold").arg(node);
        }
        command
            .env("SLURM_JOB_ID", id)
            .env("SLURM_JOB_NAME", "train")
            .env("TPU_RUNTIME_METRICS_PORTS", ports.runtime.to_string())
            .env("ENABLE_ORBAX_PROMETHEUS_TELEMETRY", "true")
            .env("ORBAX_PROMETHEUS_PORT", ports.orbax.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut job = Self { child, stdin, stdout: BufReader::new(stdout) };
        job.line();
        job
    }

    /// Sets values, as `fake-tpu-host` describes them, and returns when they are served.
    ///
    /// # Panics
    /// If it has ended.
    pub fn show(&mut self, values: &Value) {
        writeln!(self.stdin, "{values}").unwrap();
        self.line();
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) {
        let mut line = String::new();
        assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the job ended");
    }
}

impl Drop for ScriptedJob {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
