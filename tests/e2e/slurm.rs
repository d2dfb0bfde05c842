//! A real Slurm: the hosts of a job, and steps in it as the way to their agents, for plain users.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
};

use fakes::{
    command::{Ended, RunningCommand, start_as},
    fake_host::FakeHost,
    harness::workspace,
    python_peer::PythonPeer,
    running_agent::RunningAgent,
    slurm_cluster::{ALICE, BOB, SlurmCluster, SlurmUser},
    wait::{LIMIT, until, wait_with},
};
use model::device::Generation;
use serde_json::Value;

use crate::schema::Schema;

/// A cluster of three nodes with an agent each, which see the chips of their node alone.
struct SlurmNodes {
    slurm: SlurmCluster,
    agents: Vec<RunningAgent>,
    _hosts: Vec<FakeHost>,
}

const NODES: [&str; 3] = ["n0", "n1", "n2"];

impl SlurmNodes {
    fn start(python: &PythonPeer) -> Self {
        let slurm = SlurmCluster::start(NODES.len(), python);
        let (mut agents, mut hosts) = (Vec::new(), Vec::new());
        for node in NODES {
            let host = FakeHost::with(Generation::V6e, 1);
            // Its device is opened by the job of a plain user.
            fs::set_permissions(host.root(), Permissions::from_mode(0o755)).unwrap();
            symlink(&host.chips()[0].nodes[0], slurm.folder().join(format!("chip-{node}"))).unwrap();
            let enter = slurm.enter();
            let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
            let agent = RunningAgent::start_in(&host, &format!("[agent]\nhost = '{node}'\n"), &enter);
            slurm.agent(node, &agent.home().socket());
            agents.push(agent);
            hosts.push(host);
        }
        fs::copy(workspace().join("packaging/demo/job.py"), slurm.folder().join("job.py")).unwrap();
        Self { slurm, agents, _hosts: hosts }
    }

    fn work(&self) -> PathBuf {
        self.slurm.folder().join("work")
    }

    /// Submits a JAX job on n0 and n1, and waits until both processes run their steps.
    fn jax_job(&self, user: SlurmUser, python: &PythonPeer) -> String {
        let variables = PythonPeer::variables().map(|(name, value)| format!("{name}={value}")).join(" ");
        // The nodes have one network.
        let task = format!(
            "port=$((9012 + SLURM_NODEID)); exec env {variables} JAX_PLATFORMS=cpu TPUSCOPE_PROFILER_PORT=$port {} \
             {at}/job.py $port {at}/chip-$SLURMD_NODENAME",
            python.program(),
            at = self.slurm.folder().display()
        );
        let options = [
            "--nodes=2",
            "--nodelist=n[0-1]",
            "--ntasks-per-node=1",
            "--cpus-per-task=3",
            "--mem-per-cpu=200",
        ];
        let job = self.slurm.submit(user, &options, &format!("srun sh -c '{task}'"));
        let output = || fs::read_to_string(self.work().join(format!("{job}.out"))).unwrap_or_default();
        wait_with("the JAX job", LIMIT, output, || (output().matches("ready").count() == 2).then_some(()));
        job
    }

    fn tpuscope(&self, user: SlurmUser, arguments: &[&str]) -> Ended {
        self.slurm.run(user, "tpuscope", arguments)
    }

    fn start_tpuscope(&self, user: SlurmUser, arguments: &[&str]) -> RunningCommand {
        let mut command = self.slurm.command(user, "tpuscope");
        command.args(arguments);
        start_as(command)
    }

    fn manifest(&self, session: &str) -> Value {
        let file = self.work().join("plugins/profile").join(session).join("manifest.json");
        let manifest = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        Schema::open("manifest").admits(&manifest);
        manifest
    }
}

#[test]
fn the_hosts_of_a_job_are_reached_by_its_user_alone() {
    let python = PythonPeer::with_jax();
    let nodes = SlurmNodes::start(&python);
    let job = nodes.jax_job(ALICE, &python);
    let foreign = nodes.slurm.submit(BOB, &["--nodelist=n0", "--mem=100"], "sleep 1000");
    nodes.slurm.state(BOB, &foreign, "RUNNING");
    own_job_is_captured(&nodes, &job);
    inside_the_job_its_own_variables_name_the_hosts(&nodes, &job);
    an_element_of_an_array_is_reached(&nodes);
    a_foreign_job_is_refused(&nodes, &foreign);
    on_a_shared_node_the_user_decides(&nodes, &foreign);
    errors_of_slurm_are_passed_on(&nodes, &job);
    a_job_that_ends_during_its_capture_frees_its_hosts(&nodes, &job);
    a_slurm_that_does_not_answer_is_named(&nodes, &foreign);
}

fn own_job_is_captured(nodes: &SlurmNodes, job: &str) {
    let status = nodes.tpuscope(ALICE, &["status", "--slurm-job", job, "--via", "srun", "--json"]);
    assert_eq!(status.code, Some(0), "{status:?}\n{}", nodes.slurm.logs());
    let status = status.json();
    Schema::open("status-hosts").admits(&status);
    for (host, node) in [(0, "n0"), (1, "n1")] {
        let answer = &status["hosts"][host];
        assert_eq!((&answer["host"], &answer["status"]["host"]), (&node.into(), &node.into()), "{status}");
        let owner = &answer["status"]["owners"][0];
        assert_eq!(owner["uid"], ALICE.uid, "{status}");
        assert_eq!((&owner["job"]["kind"], &owner["job"]["id"]), (&"slurm".into(), &job.into()), "{status}");
    }
    let capture = ["capture", "--slurm-job", job, "--via", "srun", "--duration", "500ms", "--session", "own"];
    let ended = nodes.tpuscope(ALICE, &capture);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let manifest = nodes.manifest("own");
    let hosts = manifest["hosts"].as_array().unwrap();
    let of = |host: &Value| (host["host"].clone(), host["parts"][0]["job"]["id"].clone());
    assert_eq!(
        hosts.iter().map(of).collect::<Vec<_>>(),
        [("n0".into(), job.into()), ("n1".into(), job.into())]
    );
}

fn inside_the_job_its_own_variables_name_the_hosts(nodes: &SlurmNodes, job: &str) {
    // A PATH without squeue.
    let bin = nodes.slurm.folder().join("inside");
    fs::create_dir(&bin).unwrap();
    symlink(nodes.slurm.folder().join("bin/tpuscope"), bin.join("tpuscope")).unwrap();
    symlink("/usr/bin/srun", bin.join("srun")).unwrap();
    // What a job may ask for, and what keeps a step without further options from its start.
    let options = ["--nodelist=n2", "--mem-per-cpu=100", "--ntasks-per-node=2", "--cpus-per-task=1"];
    let ask = "tpuscope status --slurm-job $SLURM_JOB_ID --via srun --json";
    let inside = nodes.slurm.submit(ALICE, &options, &format!("PATH={} {ask}", bin.display()));
    nodes.slurm.state(ALICE, &inside, "COMPLETED");
    let output = fs::read_to_string(nodes.work().join(format!("{inside}.out"))).unwrap();
    let status: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error} in {output}"));
    assert_eq!(status["hosts"][0]["status"]["host"], "n2", "{status}");
    // In a step from outside they name its own node alone.
    let step = ["--jobid", job, "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1", "--mem=0"];
    let ask = ["tpuscope", "status", "--slurm-job", job, "--via", "srun"];
    let ended = nodes.slurm.run(ALICE, "srun", &[&step[..], &ask].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("2 hosts; 2 chips\n"), "{ended:?}");
}

fn an_element_of_an_array_is_reached(nodes: &SlurmNodes) {
    let array = nodes.slurm.submit(ALICE, &["--array=3-4", "--nodelist=n2", "--mem=100"], "sleep 1000");
    let element = format!("{array}_3");
    nodes.slurm.state(ALICE, &element, "RUNNING");
    let ended = nodes.tpuscope(ALICE, &["status", "--slurm-job", &element, "--via", "srun"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("1 host; 1 chip\n"), "{ended:?}");
    let all = nodes.tpuscope(ALICE, &["status", "--slurm-job", &array, "--via", "srun"]);
    all.failed(2, &format!("the id {array} stands for several jobs"));
    assert_eq!(nodes.slurm.run(ALICE, "scancel", &[&array]).code, Some(0));
}

fn a_foreign_job_is_refused(nodes: &SlurmNodes, job: &str) {
    let status = nodes.tpuscope(ALICE, &["status", "--slurm-job", job, "--via", "srun", "--json"]);
    assert_eq!(status.code, Some(18), "{status:?}");
    let missing = &status.json()["hosts"][0]["missing"];
    assert_eq!(missing["kind"], "foreign_job", "{missing}");
    let reason = missing["reason"].as_str().unwrap();
    assert!(reason.starts_with("srun: error: ") && reason.ends_with("Access/permission denied"), "{reason}");
    assert!(missing["remedy"].as_str().unwrap().starts_with("only the user of a job"), "{missing}");
    let capture =
        ["capture", "--slurm-job", job, "--via", "srun", "--duration", "10ms", "--session", "foreign"];
    nodes.tpuscope(ALICE, &capture).failed(4, "Access/permission denied");
    assert!(!nodes.work().join("plugins/profile/foreign").exists());
}

/// Bob's own job is on a node on which only Alice's job has a profiler.
fn on_a_shared_node_the_user_decides(nodes: &SlurmNodes, job: &str) {
    let capture = ["capture", "--slurm-job", job, "--via", "srun", "--duration", "10ms", "--output", "bob"];
    nodes.tpuscope(BOB, &capture).failed(4, "left out, because not yours: 1 process");
    let status = nodes.tpuscope(BOB, &["status", "--slurm-job", job, "--via", "srun"]);
    assert_eq!(status.code, Some(0), "{status:?}");
}

fn errors_of_slurm_are_passed_on(nodes: &SlurmNodes, job: &str) {
    let ask = |job: &str| nodes.tpuscope(ALICE, &["status", "--slurm-job", job, "--via", "srun"]);
    let held = nodes.slurm.submit(ALICE, &["--hold", "--mem=100"], "true");
    ask(&held).failed(5, &format!("the Slurm job {held} has no hosts: its state is PENDING"));
    let ended = nodes.slurm.submit(ALICE, &["--nodelist=n2", "--mem=100"], "true");
    nodes.slurm.state(ALICE, &ended, "COMPLETED");
    ask(&ended).failed(5, &format!("the Slurm job {ended} has ended"));
    ask("4000000").failed(5, "Invalid job id specified");
    // No tpuscope in the PATH over there, which is that of the caller.
    let bare = nodes.slurm.folder().join("bin/tpuscope").display().to_string();
    let bare = ["PATH=/usr/bin:/bin", &bare, "status", "--slurm-job", job, "--via", "srun", "--json"];
    let bare = nodes.slurm.run(ALICE, "env", &bare);
    assert_eq!(bare.code, Some(18), "{bare:?}");
    let missing = &bare.json()["hosts"][1]["missing"];
    assert_eq!(missing["kind"], "no_tpuscope", "{missing}");
}

fn a_job_that_ends_during_its_capture_frees_its_hosts(nodes: &SlurmNodes, job: &str) {
    let capture =
        ["capture", "--slurm-job", job, "--via", "srun", "--duration", "25s", "--session", "ending"];
    let capture = nodes.start_tpuscope(ALICE, &capture);
    let begun = |agent: &RunningAgent| agent.log().contains("session=ending");
    until("the reservations", || nodes.agents[..2].iter().all(begun));
    assert_eq!(nodes.slurm.run(ALICE, "scancel", &[job]).code, Some(0));
    let ended = capture.end();
    ended.failed(10, "n0: the connection was lost: srun: ");
    // Which of its lines Slurm still delivers differs from run to run.
    let said = [" ON n0 CANCELLED AT ", "error: n0: task 0: Terminated"];
    assert!(said.iter().any(|said| ended.stderr.contains(said)), "{ended:?}");
    assert!(!nodes.work().join("plugins/profile/ending").exists());
    let over = |agent: &RunningAgent| agent.log().contains("the capture over several hosts ends here early");
    until("the agents to be free", || nodes.agents[..2].iter().all(over));
}

fn a_slurm_that_does_not_answer_is_named(nodes: &SlurmNodes, job: &str) {
    nodes.slurm.stop_controller();
    let ask = ["status", "--slurm-job", job, "--via", "srun"];
    nodes.tpuscope(BOB, &ask).failed(10, "Unable to contact slurm controller");
}
