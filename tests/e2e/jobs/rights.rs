//! Who sees what of whose jobs: real users on the real socket.

use std::{path::PathBuf, process::Command};

use fakes::{
    command::{Ended, start_as},
    harness::{copy_program, tpuscope},
    running_agent::Home,
    wait::eventually,
};

use super::JobHost;
use crate::schema::Schema;

const ADA: u32 = 54321;
const BOB: u32 = 54322;

/// The program, where every user may run it.
struct Users {
    _home: Home,
    program: PathBuf,
}

impl Users {
    fn new() -> Self {
        let home = Home::new();
        let program = home.path().join("tpuscope");
        copy_program(&tpuscope(), &program);
        Self { _home: home, program }
    }

    fn command(&self, uid: u32, host: &JobHost, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
        let (first, rest) = words.split_at(1);
        command.arg(&self.program).args(first);
        if first == ["jobs"] {
            command.args(rest).arg("--socket").arg(host.agent.home().socket());
        } else {
            command.arg("--socket").arg(host.agent.home().socket()).args(rest);
        }
        command
    }

    fn ask(&self, uid: u32, host: &JobHost, words: &[&str]) -> Ended {
        start_as(self.command(uid, host, words)).end()
    }
}

#[test]
fn a_job_is_its_users_and_others_see_that_it_is_there() {
    let host = JobHost::start();
    let users = Users::new();
    for (uid, name) in [(ADA, "secret-project"), (BOB, "secret-project"), (BOB, "other")] {
        let ended = users.ask(uid, &host, &["run", "--name", name, "--", "true"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
    eventually("the ends", || host.jobs().iter().all(|job| job["state"] == "ended").then_some(()));
    let listed = users.ask(ADA, &host, &["jobs", "list", "--json"]);
    Schema::open("jobs-list").admits(&listed.json());
    let jobs = listed.json()["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 3);
    for job in &jobs {
        let own = job["uid"] == ADA;
        assert_eq!(job["private"], !own, "{job}");
        assert_eq!(
            (job["name"].is_null(), job["attempts"].as_array().unwrap().is_empty()),
            (!own, !own),
            "{job}"
        );
    }
    // The same name is two jobs, and each user has one of them.
    let own = users.ask(ADA, &host, &["jobs", "show", "secret-project", "--json"]).json();
    assert_eq!(own["job"]["uid"], ADA);
    users.ask(ADA, &host, &["jobs", "show", "other"]).failed(4, "belongs to another user");
    users.ask(ADA, &host, &["jobs", "diff", "secret-project", "other"]).failed(4, "belongs to another user");
    users.ask(ADA, &host, &["jobs", "show", "nothing"]).failed(5, "no job is named nothing");
    // Root has both.
    let several = host.ask(&["jobs", "show", "secret-project"]);
    several.failed(2, "several jobs are named secret-project");
    for uid in [ADA, BOB] {
        assert!(several.stderr.contains(&format!("run:secret-project (uid {uid}, ended)")), "{several:?}");
    }
    let one = host.ask(&["jobs", "show", "secret-project", "--uid", &BOB.to_string(), "--json"]).json();
    assert_eq!(one["job"]["uid"], BOB);
}
