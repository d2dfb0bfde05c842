//! The hosts under the Prometheus of the fleet, each with what its alerts need.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use fakes::{
    command::{self, Ended},
    fake_gcs::{BUCKET, FakeGcs, GcsEffect, GcsFault, Moment},
    fake_grpc::{Reply, ServerAddress},
    fake_host::FakeHost,
    fake_host_service::{self, FakeHostService},
    fake_profiler::{FakeProfiler, Mode, trace},
    fake_runtime::FakeRuntime,
    harness::workspace,
    running_agent::{Home, RunningAgent},
    scripted_job::{ScriptedJob, ScriptedPorts},
    small_disk::SmallDisk,
    wait::{LIMIT, wait_with},
};
use model::device::{Chip, Generation};
use serde_json::json;

use super::JOB;
use crate::hosts::remote_agent::{Authority, agent_here, now};

/// What all agents have. The disk of the machine that tests may be nearly full.
const QUICK: &str = "[sampler]\ninterval = '250ms'\norbax_grain_interval = '1s'\n[libtpu]\nenabled = 'off'\n\
                     [workload]\nscan_interval = '250ms'\n[store]\nmin_free = '0B'\n";

fn endpoint(kind: &str, address: impl std::fmt::Display) -> String {
    format!("[[workload.endpoints]]\nkind = '{kind}'\naddress = '{address}'\n")
}

fn event_files(directory: &Path) -> String {
    format!("[export.tensorboard]\ndirectory = '{}'\ninterval = '1s'\n", directory.display())
}

fn host_service(chips: u32) -> FakeHostService {
    FakeHostService::start(ServerAddress::Tcp(([127, 0, 0, 1], 0).into()), chips)
}

/// Says how many chips the host should have; the settings for it.
fn expecting(host: &FakeHost, bounds: &str) -> String {
    let path = host.root().join("tpu-env");
    fs::write(&path, format!("CHIPS_PER_HOST_BOUNDS: '{bounds}'\n")).unwrap();
    format!("[device]\ntpu_env = '{}'\n", path.display())
}

fn ask(agent: &RunningAgent, words: &[&str]) -> Ended {
    let socket = agent.home().socket().display().to_string();
    command::run(agent.home().path(), &[words, &["--socket", &socket]].concat())
}

/// Four chips, a workload, the service of the host and a folder for event files, all sound.
pub(super) struct SoundHost {
    runtime: Option<FakeRuntime>,
    pub(super) agent: RunningAgent,
    _service: FakeHostService,
    _host: FakeHost,
}

impl SoundHost {
    pub(super) fn start() -> Self {
        let host = FakeHost::with(Generation::V6e, 4);
        let (runtime, service) = (FakeRuntime::with_devices(&[0, 1, 2, 3]), host_service(4));
        let boards = host.root().join("boards");
        fs::create_dir(&boards).unwrap();
        let settings = [
            QUICK,
            &expecting(&host, "2,2,1"),
            &event_files(&boards),
            &endpoint("runtime_metrics", runtime.address()),
            &endpoint("host_service", service.address()),
        ];
        let agent = RunningAgent::start(&host, &settings.concat());
        Self { runtime: Some(runtime), agent, _service: service, _host: host }
    }

    /// The service of its workload ends.
    pub(super) fn loses_its_runtime(&mut self) {
        self.runtime = None;
    }
}

/// Four of eight chips with a job that works and marks its steps, one chip with a fault, and a certificate that expires in
/// five days.
pub(super) struct WorkingHost {
    job: ScriptedJob,
    step: u32,
    service: FakeHostService,
    marking: Child,
    pub(super) agent: RunningAgent,
    _authority: Authority,
    _host: FakeHost,
}

impl WorkingHost {
    pub(super) fn start() -> Self {
        let mut host = FakeHost::with(Generation::V6e, 5);
        let chips = host.chips();
        host.bind_drivers(&[0, 1, 2, 3]);
        chips[4].nodes.iter().for_each(|node| fs::remove_file(node).unwrap());
        let mut job = ScriptedJob::start(JOB, &chips[..4], ScriptedPorts::free());
        job.show(&json!({ "step": 1 }));
        host.show_only(&[job.pid()]);
        host.add_counters();
        let (service, authority) = (host_service(4), Authority::new());
        authority.issued_at("soon", &agent_here(), now(), 5);
        let settings = [
            QUICK,
            &expecting(&host, "2,4,1"),
            &endpoint("host_service", service.address()),
            &authority.settings("soon", ""),
        ];
        let agent = RunningAgent::start(&host, &settings.concat());
        let marking = marking(agent.home(), &chips[0]);
        host.show(marking.id());
        Self { job, step: 1, service, marking, agent, _authority: authority, _host: host }
    }

    /// The job works on.
    pub(super) fn advance(&mut self) {
        self.step += 1;
        self.job.show(&json!({ "step": self.step }));
    }

    /// Memory is nearly full, the job does not use its first chip, and its third is throttled and has a bad link.
    pub(super) fn gets_sick(&mut self) {
        self.job.show(&json!({ "hbm": 97, "duty": [0, 95, 95, 95] }));
        let mut sick = fake_host_service::metrics(4, 1);
        let health = sick.metrics_data[2].tpu_health_metrics.as_mut().unwrap();
        health.ici_link_metrics[1].link_health = 10;
        health.chip_throttling_metric.as_mut().unwrap().throttling_score = 3;
        self.service.set_reply(Reply::of(&sick));
    }

    /// No chip of the job is busy any more.
    pub(super) fn stops(&mut self) {
        self.job.show(&json!({ "duty": 0 }));
    }
}

impl Drop for WorkingHost {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.marking.kill();
        let _ = self.marking.wait();
    }
}

/// A second process of the job, which holds a chip too and marks a step each second.
fn marking(home: &Home, chip: &Chip) -> Child {
    let held = File::options().append(true).open(&chip.nodes[0]).unwrap();
    Command::new("python3")
        .arg(workspace().join("tests/peers/marks_peer.py"))
        .arg("steps")
        .arg(home.path().join("marks.sock"))
        .args(["run", "1000", "1.02"])
        .env("PYTHONPATH", workspace().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SLURM_JOB_ID", JOB)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(held)
        .spawn()
        .unwrap()
}

/// A job that holds its chip and has not worked yet, a session that cannot be uploaded, and a folder for event files that is not
/// there.
pub(super) struct WaitingHost {
    pub(super) agent: RunningAgent,
    _job: ScriptedJob,
    _profiler: FakeProfiler,
    _bucket: FakeGcs,
    _host: FakeHost,
}

impl WaitingHost {
    pub(super) fn start() -> Self {
        let mut host = FakeHost::with(Generation::V6e, 1);
        let mut job = ScriptedJob::start("78", &host.chips(), ScriptedPorts::free());
        job.show(&json!({ "duty": 0, "hbm": 50 }));
        host.show_only(&[job.pid()]);
        let (profiler, bucket) = (FakeProfiler::start(Mode::Trace(trace())), FakeGcs::start());
        bucket.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).always());
        let destination = format!(
            "[[destination]]\nname = 'bucket'\nurl = 'gs://{BUCKET}/x'\ncredentials = '{}'\n",
            bucket.credentials_file().display()
        );
        let settings = [
            QUICK,
            &endpoint("profiler", profiler.target()),
            &destination,
            &event_files(&host.root().join("none")),
        ];
        let agent = RunningAgent::start(&host, &settings.concat());
        let waiting = Self { agent, _job: job, _profiler: profiler, _bucket: bucket, _host: host };
        waiting.captures();
        waiting
    }

    fn captures(&self) {
        let captured =
            ask(&self.agent, &["capture", "--duration", "100ms", "--session", "s", "--to", "bucket"]);
        wait_with(
            "an upload that waits",
            LIMIT,
            || format!("{captured:?}"),
            || {
                let listed = ask(&self.agent, &["uploads", "list", "--json"]).json();
                listed["uploads"].as_array().filter(|uploads| uploads.len() == 1).map(drop)
            },
        );
    }
}

/// A host whose chips cannot be listed, with a disk that is nearly full.
pub(super) struct BlindHost {
    pub(super) agent: RunningAgent,
    _disk: SmallDisk,
    _host: FakeHost,
}

impl BlindHost {
    pub(super) fn start() -> Self {
        let (host, disk, home) = (FakeHost::with(Generation::V6e, 4), SmallDisk::new(), Home::new());
        fs::remove_dir_all(host.sys().join("bus")).unwrap();
        let mut command = home.command(&host.config(&(QUICK.to_owned() + &expecting(&host, "2,2,1"))));
        command.arg("--set").arg(format!("agent.state_dir={}", disk.path().join("state").display()));
        Self { agent: RunningAgent::ready(home, command), _disk: disk, _host: host }
    }

    /// Its log and its status say what cannot be read, and not that chips vanished.
    pub(super) fn says_why(&self) {
        let log = self.agent.log();
        assert_eq!(log.matches("chips are unknown: cannot list PCI functions in ").count(), 1, "{log}");
        assert!(!log.contains("chip vanished"), "{log}");
        let page = ask(&self.agent, &["status"]).stdout;
        assert!(page.contains("\nchips unknown: cannot list PCI functions in "), "{page}");
        assert!(!page.contains("no TPU chips"), "{page}");
    }
}
