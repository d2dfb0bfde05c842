//! The hooks in a real Slurm of four nodes with an agent each. One cluster for all cases; none of them may drain a node.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
};

use fakes::{
    command::Ended,
    fake_host::FakeHost,
    running_agent::RunningAgent,
    slurm_cluster::{ALICE, BOB, ROOT, SlurmCluster, SlurmUser},
    wait::{LIMIT, until, wait_with},
};
use model::device::Generation;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::schema::Schema;

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

/// The cluster, and the agents of its nodes, which see the chips of their node alone.
struct SlurmWithHooks {
    slurm: SlurmCluster,
    agents: Vec<RunningAgent>,
    hosts: Vec<FakeHost>,
}

impl SlurmWithHooks {
    fn start() -> Self {
        let slurm = SlurmCluster::start_with_hooks(NODES.len());
        let (mut agents, mut hosts) = (Vec::new(), Vec::new());
        let settings = slurm.folder().join("settings");
        fs::create_dir(&settings).unwrap();
        for node in NODES {
            let host = FakeHost::with(Generation::V6e, 1);
            fs::set_permissions(host.root(), Permissions::from_mode(0o755)).unwrap();
            let enter = slurm.enter();
            let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
            let agent = RunningAgent::start_in(&host, &format!("[agent]\nhost = '{node}'\n"), &enter);
            slurm.agent(node, &agent.home().socket());
            symlink(host.config(""), settings.join(node)).unwrap();
            agents.push(agent);
            hosts.push(host);
        }
        let nodes = Self { slurm, agents, hosts };
        // The hooks see the chips of their node, as the settings of a host say it.
        let (folder, program) = (nodes.slurm.folder().display(), nodes.slurm.folder().join("with-settings"));
        let text = format!(
            "#!/bin/sh\nTPUSCOPE_CONFIG={folder}/settings/$SLURMD_NODENAME exec {folder}/bin/tpuscope \"$@\"\n"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        nodes.slurm.hooks_call(&program);
        nodes
    }

    fn work(&self, file: &str) -> PathBuf {
        self.slurm.folder().join("work").join(file)
    }

    fn agent(&self, node: &str) -> &RunningAgent {
        let at = NODES.iter().position(|name| *name == node).unwrap();
        &self.agents[at]
    }

    /// What the agent of a node tells a user of a job.
    fn ask(&self, user: SlurmUser, node: &str, job: &str) -> Ended {
        let socket = self.agent(node).home().socket().display().to_string();
        self.slurm.run(user, "tpuscope", &["slurm", "report", job, "--json", "--socket", &socket])
    }

    /// The report of a job once its last attempt is over on a node.
    fn ended(&self, user: SlurmUser, node: &str, job: &str) -> Value {
        let last = || format!("{:?}\n{}", self.ask(user, node, job), self.agent(node).log());
        let report = wait_with(&format!("the end of job {job} on {node}"), LIMIT, last, || {
            let asked = self.ask(user, node, job);
            let report = (asked.code == Some(0)).then(|| asked.json())?;
            (report["job"]["attempts"].as_array()?.last()?["state"] == "ended").then_some(report)
        });
        Schema::open("slurm-report").admits(&report);
        report
    }

    /// Number, kind and code of the end of each attempt.
    fn endings<'a>(report: &'a Value) -> Vec<(u64, &'a str, Option<u64>)> {
        let attempts = report["job"]["attempts"].as_array().unwrap().iter();
        let ending = |one: &'a Value| {
            let ending = &one["ending"];
            (one["attempt"].as_u64().unwrap(), ending["how"].as_str().unwrap_or("-"), ending["code"].as_u64())
        };
        attempts.map(ending).collect()
    }

    /// Lets a job that waits after a requeue start now.
    fn start_now(&self, job: &str) {
        until("the requeued job to be pending", || {
            let update = ["update", &format!("jobid={job}"), "starttime=now"];
            self.slurm.run(ROOT, "scontrol", &update).code == Some(0)
        });
        self.slurm.state(ALICE, job, "RUNNING");
    }

    fn no_node_is_drained(&self) {
        let nodes = self.slurm.nodes();
        let sound = |node: &String| !node.contains("drain") && !node.contains("error");
        assert!(nodes.len() == NODES.len() && nodes.iter().all(sound), "{nodes:?}\n{}", self.slurm.logs());
    }
}

#[test]
fn every_end_of_a_job_is_told_and_no_node_is_drained() {
    let nodes = SlurmWithHooks::start();
    // Slurm takes its time to see that a node is lost: the other cases run meanwhile.
    let lost = a_node_is_killed(&nodes);
    a_job_of_three_nodes(&nodes);
    a_failing_batch_and_an_array(&nodes);
    a_cancelled_and_a_requeued_job(&nodes);
    what_a_job_leaves_is_named(&nodes);
    a_report_is_written_on_request(&nodes);
    an_agent_that_hangs_and_one_that_is_away(&nodes);
    nothing_is_drained_by_a_broken_program(&nodes);
    check_says_what_this_cluster_lacks(&nodes);
    the_survivor_of_a_lost_node_knows_the_end(&nodes, &lost);
    nodes.no_node_is_drained();
}

fn a_node_is_killed(nodes: &SlurmWithHooks) -> String {
    let options = ["--nodes=2", "--nodelist=n[2-3]", "--mem=50", "--job-name=lost"];
    let job = nodes.slurm.submit(ALICE, &options, "srun --mem=0 sleep 1000");
    nodes.slurm.state(ALICE, &job, "RUNNING");
    until("the step of the job", || {
        let steps = nodes.slurm.run(ALICE, "squeue", &["-h", "-s", "-j", &job]).stdout;
        steps.contains(&format!("{job}.0"))
    });
    nodes.slurm.kill_node("n3");
    job
}

fn a_job_of_three_nodes(nodes: &SlurmWithHooks) {
    let options = ["--nodes=3", "--nodelist=n[0-2]", "--mem=50", "--job-name=train", "--ntasks-per-node=2"];
    let job = nodes.slurm.submit(ALICE, &options, "srun true");
    for (node, rank) in [("n0", 0), ("n1", 1), ("n2", 2)] {
        let report = nodes.ended(ALICE, node, &job);
        // Slurm tells the same of a job that was cancelled.
        assert_eq!(SlurmWithHooks::endings(&report), [(0, "unknown", None)], "{report}");
        let (job, newest) = (&report["job"], &report["job"]["attempts"][0]);
        assert_eq!(
            (&newest["rank"], &newest["hosts"]),
            (&rank.into(), &serde_json::json!(["n0", "n1", "n2"]))
        );
        assert_eq!((&job["cluster"], &job["name"]), (&"test".into(), &"train".into()), "{report}");
        assert_eq!((&job["uid"], &job["user"]), (&ALICE.uid.into(), &"alice".into()), "{report}");
    }
    let foreign = nodes.ask(BOB, "n0", &job);
    assert_ne!(foreign.code, Some(0), "{foreign:?}");
}

fn a_failing_batch_and_an_array(nodes: &SlurmWithHooks) {
    let options = ["--nodelist=n0", "--mem=50"];
    let failing = nodes.slurm.submit(BOB, &options, "exit 42");
    let array =
        nodes.slurm.submit(BOB, &[&options[..], &["--array=3-4"]].concat(), "exit $SLURM_ARRAY_TASK_ID");
    assert_eq!(SlurmWithHooks::endings(&nodes.ended(BOB, "n0", &failing)), [(0, "exit", Some(42))]);
    for element in [3, 4] {
        let report = nodes.ended(BOB, "n0", &format!("{array}_{element}"));
        assert_eq!(SlurmWithHooks::endings(&report), [(0, "exit", Some(element))], "{report}");
    }
}

fn a_cancelled_and_a_requeued_job(nodes: &SlurmWithHooks) {
    let options = ["--nodelist=n0", "--mem=50", "--requeue"];
    let (cancelled, requeued) = (
        nodes.slurm.submit(ALICE, &options, "sleep 1000"),
        nodes.slurm.submit(ALICE, &options, "sleep 1000"),
    );
    for job in [&cancelled, &requeued] {
        nodes.slurm.state(ALICE, job, "RUNNING");
    }
    assert_eq!(nodes.slurm.run(ALICE, "scancel", &[&cancelled]).code, Some(0));
    assert_eq!(nodes.slurm.run(ROOT, "scontrol", &["requeue", &requeued]).code, Some(0));
    assert_eq!(SlurmWithHooks::endings(&nodes.ended(ALICE, "n0", &cancelled)), [(0, "unknown", None)]);
    assert_eq!(SlurmWithHooks::endings(&nodes.ended(ALICE, "n0", &requeued)), [(0, "requeued", None)]);
    nodes.start_now(&requeued);
    assert_eq!(nodes.slurm.run(ALICE, "scancel", &[&requeued]).code, Some(0));
    let twice = wait_with("two attempts", LIMIT, String::new, || {
        let report = nodes.ended(ALICE, "n0", &requeued);
        (report["job"]["attempts"].as_array()?.len() == 2).then_some(report)
    });
    let wanted = [(0, "requeued", None), (1, "unknown", None)];
    assert_eq!(SlurmWithHooks::endings(&twice), wanted, "{twice}");
}

/// A process that leaves its job: this cluster does not track processes by their cgroups.
fn what_a_job_leaves_is_named(nodes: &SlurmWithHooks) {
    let chip = nodes.hosts[0].chips()[0].nodes[0].display().to_string();
    let script = format!("(setsid sh -c 'exec sleep 1000 <{chip}' &) && sleep 1");
    let job = nodes.slurm.submit(ALICE, &["--nodelist=n0", "--mem=50"], &script);
    let report = nodes.ended(ALICE, "n0", &job);
    let left = &report["job"]["attempts"][0]["leftovers"];
    assert!(left[0]["pid"].as_u64() > Some(0) && left[0]["files"] == serde_json::json!([chip]), "{report}");
    let log = || nodes.agent("n0").log();
    wait_with("the leftover in the log", LIMIT, log, || {
        let log = nodes.agent("n0").log();
        let named = log.lines().find(|line| line.contains("still holds"))?.to_owned();
        (named.contains(&format!("slurm:{job}")) && named.contains(&chip)).then_some(())
    });
}

fn a_report_is_written_on_request(nodes: &SlurmWithHooks) {
    let options = |name: &'static str| ["--nodelist=n0", "--mem=50", "--job-name=reported", name];
    let job =
        nodes.slurm.submit(ALICE, &options("--export=ALL,TPUSCOPE_REPORT=report-%j-%N.txt"), "srun true");
    nodes.ended(ALICE, "n0", &job);
    let file = nodes.work(&format!("report-{job}-n0.txt"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}\n{}", nodes.slurm.logs()));
    assert!(
        text.starts_with(&format!("job slurm:{job}, name reported, cluster test, user alice ")),
        "{text}"
    );
    assert_eq!(fs::metadata(&file).unwrap().uid(), ALICE.uid);
    // Of somebody else, behind a link that waits where the report is to be.
    let victim = nodes.work("victim");
    fs::write(&victim, "mine").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o666)).unwrap();
    symlink(&victim, nodes.work("link")).unwrap();
    for user in [ALICE, ROOT] {
        let job = nodes.slurm.submit(user, &options("--export=ALL,TPUSCOPE_REPORT=link"), "true");
        nodes.ended(user, "n0", &job);
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    assert!(nodes.work("link").is_symlink());
}

/// Sends a signal to an agent in the cluster: it is a child of the command that entered.
fn signal(agent: &RunningAgent, signal: Signal) {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid())).unwrap();
    kill(Pid::from_raw(children.trim().parse().unwrap()), signal).unwrap();
}

fn an_agent_that_hangs_and_one_that_is_away(nodes: &SlurmWithHooks) {
    let agent = nodes.agent("n0");
    signal(agent, Signal::SIGSTOP);
    let job = nodes.slurm.submit(ALICE, &["--nodelist=n0", "--mem=50"], "exit 0");
    nodes.slurm.state(ALICE, &job, "COMPLETED");
    signal(agent, Signal::SIGCONT);
    nodes.no_node_is_drained();
    let socket = nodes.slurm.folder().join("node/n0/agent.sock");
    fs::rename(&socket, socket.with_extension("away")).unwrap();
    let job = nodes.slurm.submit(ALICE, &["--nodelist=n0", "--mem=50"], "exit 0");
    nodes.slurm.state(ALICE, &job, "COMPLETED");
    fs::rename(socket.with_extension("away"), &socket).unwrap();
    nodes.no_node_is_drained();
}

fn nothing_is_drained_by_a_broken_program(nodes: &SlurmWithHooks) {
    let broken = nodes.work("broken");
    fs::write(&broken, b"\x7fELF of another machine").unwrap();
    fs::set_permissions(&broken, Permissions::from_mode(0o755)).unwrap();
    for program in [broken, nodes.work("missing")] {
        nodes.slurm.hooks_call(&program);
        let job = nodes.slurm.submit(ALICE, &["--nodelist=n0", "--mem=50"], "srun echo $((6 * 7))");
        nodes.slurm.state(ALICE, &job, "COMPLETED");
        let output = fs::read_to_string(nodes.work(&format!("{job}.out"))).unwrap();
        assert_eq!(output, "42\n");
        nodes.no_node_is_drained();
    }
    nodes.slurm.hooks_call(&nodes.slurm.folder().join("with-settings"));
}

fn check_says_what_this_cluster_lacks(nodes: &SlurmWithHooks) {
    let socket = nodes.agent("n0").home().socket().display().to_string();
    let checked = nodes.slurm.run(ROOT, "tpuscope", &["slurm", "check", "--json", "--socket", &socket]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let report = checked.json();
    Schema::open("slurm-check").admits(&report);
    assert_eq!(report["source"], "scontrol show config");
    let settings: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|one| one["setting"].as_str().unwrap()).collect();
    assert_eq!(settings, ["ProctrackType"], "{report}");
}

fn the_survivor_of_a_lost_node_knows_the_end(nodes: &SlurmWithHooks, job: &str) {
    let report = nodes.ended(ALICE, "n2", job);
    assert_eq!(report["job"]["attempts"].as_array().unwrap().len(), 1, "{report}");
    let lost = nodes.slurm.nodes().into_iter().find(|node| node.starts_with("n3 ")).unwrap();
    assert!(lost.starts_with("n3 down"), "{lost}");
}
