//! The agent dies: so does its libtpu child, even one that hangs inside libtpu.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use fakes::{harness::artifact, libtpu::Staged, wait::until};
use serde_json::Value;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process runs. Its new parent may leave it a zombie.
fn runs(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_child_dies_with_the_agent() {
    for then in ["", "hbm_util = hang"] {
        let staged = Staged::new(Some("0.0.52"), "");
        let agent = Command::new(artifact("read-libtpu"))
            .arg(staged.library())
            .arg("--stay")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut agent = Killed(agent);
        let mut lines = BufReader::new(agent.0.stdout.take().unwrap()).lines();
        let child = lines
            .by_ref()
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
            .find_map(|round| round["child"].as_u64())
            .expect("a child");
        assert!(runs(child));
        staged.set(then);
        agent.0.kill().unwrap();
        agent.0.wait().unwrap();
        until(&format!("the end of the child ({then})"), || !runs(child));
    }
}
