//! `tpuscope capture` over two hosts against xprof's own client: time beyond the window, in one run. Each host is an agent
//! with a real JAX job, reached through `dial-stdio`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use benches::{
    capture_window::{MOST_BEYOND, ROUNDS, WINDOW, beyond, median, xprof_beyond},
    promise,
};
use fakes::{
    harness::tpuscope,
    jax_job::{JaxJob, RunningJaxJob},
    wait::until,
};

fn main() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let targets: Vec<String> = jobs.iter().map(RunningJaxJob::target).collect();
    let folder = tempfile::tempdir().unwrap();
    let _agents: Vec<RunningAgent> = targets
        .iter()
        .zip(["a", "b"])
        .map(|(target, host)| RunningAgent::start(folder.path(), host, target))
        .collect();
    println!("time beyond a window of {} s on two hosts, median of {ROUNDS}, interleaved", WINDOW.as_secs());
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(ours_beyond(folder.path()));
        peers.push(xprof_beyond(&targets));
    }
    let (ours, peer) = (median(ours), median(peers));
    println!("  tpuscope {ours:.3} s, xprof {peer:.3} s, ratio {:.1}", peer / ours);
    if !promise::at_most("seconds beyond the window", ours, MOST_BEYOND) {
        std::process::exit(1);
    }
}

/// An agent of one host; killed on drop.
struct RunningAgent(Child);

impl RunningAgent {
    fn start(folder: &Path, host: &str, profiler: &str) -> Self {
        let (home, socket) = (folder.join(format!("home-{host}")), folder.join(host));
        fs::create_dir_all(home.join("proc")).unwrap();
        let settings = format!(
            "[agent]\nhost = 'vm-{host}'\nstate_dir = '{0}/state'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{1}'\n\
             [paths]\nprocfs = '{0}/proc'\n[[workload.endpoints]]\nkind = 'profiler'\naddress = '{profiler}'\n",
            home.display(),
            socket.display()
        );
        fs::write(home.join("agent.toml"), settings).unwrap();
        let mut command = Command::new(tpuscope());
        command.args(["agent", "--config"]).arg(home.join("agent.toml"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the agent", || {
            let mut status = Command::new(tpuscope());
            status.args(["status", "--socket"]).arg(&socket);
            status.output().unwrap().status.success()
        });
        Self(child)
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ours_beyond(sockets: &Path) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let via = format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), sockets.display());
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--hosts", "a,b", "--via-command", &via, "--duration", "1s", "--output"]);
    command.arg(folder.path());
    beyond(&mut command)
}
