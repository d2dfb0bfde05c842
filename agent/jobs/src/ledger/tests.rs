//! A scripted host: its truth is known for each second, and the ledger is compared with it.

use goodput::proxy::live::SecondState;
use model::{
    catalog,
    device::ChipIndex,
    job::{Job, JobKey, JobKind},
    label::{CHIP, CORE, Labels},
    metric::Descriptor,
    registry::WorkloadRegistry,
    sample::{Origin, Sample, SampleValue},
    time::ManualClock,
    workload::{Owner, ProcessKey, Workload, Workloads},
};
use sampling::sampler::Batch;
use store::state::StateDb;
use tempfile::TempDir;

use super::*;

const START: i64 = 1_800_000_000;
const HBM: f64 = 32e9;

/// What the chips and the program show in a second.
#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    /// The pid of the program; 0: it does not run.
    pid: u32,
    /// So many chips are open, from chip 0 on.
    chips: u32,
    /// Duty cycle as a ratio.
    duty: Option<f64>,
    /// The share of the memory in use.
    hbm: Option<f64>,
    page: Option<Page>,
}

/// What Orbax and Grain serve.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    writes: f64,
    write: f64,
    reads: f64,
    read: f64,
    next: f64,
    ready: f64,
}

/// A host of two chips with an agent.
struct ScriptedHost {
    folder: TempDir,
    clock: Arc<ManualClock>,
    kept: Ledgers,
    registry: WorkloadRegistry,
    host: watch::Sender<HostSnapshot>,
    task: Option<LedgerTask>,
}

impl ScriptedHost {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp(START * SECOND_NS + 400_000_000)));
        let kept = Ledgers::new(Arc::new(StateDb::new(folder.path(), clock.clone())));
        let host = watch::Sender::new(HostSnapshot::default());
        Self { folder, clock, kept, registry: WorkloadRegistry::default(), host, task: None }
    }

    /// The agent as it starts, with what is on the disk.
    fn start(&mut self) -> &mut LedgerTask {
        let (kept, clock, host) = (&self.kept, &self.clock, &self.host);
        self.task.get_or_insert_with(|| {
            let mut host = host.subscribe();
            host.mark_changed();
            LedgerTask::new(LiveLedgers::new(kept.clone(), clock.clone()), host)
        })
    }

    /// One second, in which the agent looks and the sources are read.
    async fn second(&mut self, job: &str, shown: Shown) {
        self.show(job, shown);
        let at = self.clock.now();
        let workload = self.registry.running().next().cloned();
        let task = self.start();
        task.tick().await;
        let ledgers = Arc::clone(&task.ledgers);
        task.keeping.settle(&ledgers).await;
        for batch in batches(at, shown, workload) {
            ledgers.batch(&batch);
        }
        self.pass().await;
    }

    async fn pass(&self) {
        self.clock.advance(SECOND);
        tokio::time::advance(SECOND).await;
    }

    fn show(&mut self, job: &str, shown: Shown) {
        let owner = Owner {
            process: ProcessKey { pid: shown.pid, start_ticks: 1 },
            uid: 1000,
            chips: (0..shown.chips).map(ChipIndex).collect(),
            job: Job { kind: JobKind::Slurm, id: job.into(), name: Some("train".into()), ..Job::default() },
            ..Owner::default()
        };
        let owners = if shown.pid == 0 { Vec::new() } else { vec![owner] };
        self.registry.observe(&owners, self.clock.now());
        let running: Vec<_> = self.registry.running().cloned().collect();
        let workloads = Arc::new(Workloads { owners, ..Workloads::default() });
        self.host.send_replace(HostSnapshot {
            workloads,
            running: running.into(),
            ..HostSnapshot::default()
        });
    }

    /// `kill -9`: nothing more is written, and the next agent starts later.
    async fn kill(&mut self, down: i64) {
        self.task = None;
        for _ in 0..down {
            self.pass().await;
        }
    }

    async fn ask(&mut self, question: LedgerQuestion) -> Vec<JobGoodput> {
        let ledgers = Arc::clone(&self.start().ledgers);
        ledgers.ask(question, |_| true).await.unwrap()
    }
}

fn batches(at: Timestamp, shown: Shown, workload: Option<Arc<Workload>>) -> Vec<Batch> {
    let sample = |metric: &'static Descriptor, labels, value, origin| Sample {
        metric: metric.into(),
        labels,
        value: if metric.name.ends_with("_total") {
            SampleValue::Counter(value)
        } else {
            SampleValue::Gauge(value)
        },
        origin,
        at,
        workload: workload.clone(),
    };
    let mut chips = Vec::new();
    for chip in 0..shown.chips {
        let mut add = |metric, value: Option<f64>| {
            let labels = || Labels::one(CHIP, chip).with(CORE, chip);
            chips.extend(value.map(|value| sample(metric, labels(), value, Origin::Runtime)));
        };
        add(&catalog::TPU_TENSORCORE_DUTY_CYCLE_RATIO, shown.duty);
        add(&catalog::TPU_HBM_TOTAL_BYTES, shown.hbm.map(|_| HBM));
        add(&catalog::TPU_HBM_USED_BYTES, shown.hbm.map(|share| share * HBM));
    }
    let page = shown.page.map(|page| {
        [
            (&catalog::JAX_ORBAX_WRITE_ASYNC_START_TOTAL, page.writes),
            (&catalog::JAX_CHECKPOINT_WRITE_ASYNC_BLOCKING_DURATION_SECONDS, page.write),
            (&catalog::JAX_ORBAX_READ_ASYNC_START_TOTAL, page.reads),
            (&catalog::JAX_ORBAX_READ_BLOCKING_DURATION_SECONDS, page.read),
            (&catalog::GRAIN_PYTHON_DATASET_NEXT_DURATION_SECONDS, page.next),
            (&catalog::GRAIN_PYTHON_DATASET_PREFETCH_BUFFER_READY_ELEMENTS, page.ready),
        ]
        .map(|(metric, value)| sample(metric, Labels::none(), value, Origin::OrbaxGrain))
    });
    let batch = |origin, samples| Batch {
        origin,
        at,
        fresh_until: at.plus(SECOND),
        samples,
        absent: Vec::new(),
        unused: None,
    };
    vec![batch(Origin::Runtime, chips), batch(Origin::OrbaxGrain, page.into_iter().flatten().collect())]
}

/// One part of the script: for so many seconds the host shows this, which is that state.
struct Part {
    seconds: u32,
    shown: Shown,
    /// What changes in the last second.
    last: Option<Page>,
    is: SecondState,
}

fn part(seconds: u32, shown: Shown, is: SecondState) -> Part {
    Part { seconds, shown, last: None, is }
}

/// Work, input stall, checkpoint, restart, idle: the parts before the agent is killed, and those after it.
fn script() -> (Vec<Part>, Vec<Part>) {
    use SecondState as S;
    let page = Page { ready: 9.0, ..Page::default() };
    let silent = Shown { pid: 7, chips: 2, page: Some(page), ..Shown::default() };
    let of = |duty, hbm, page| Shown { duty: Some(duty), hbm: Some(hbm), page: Some(page), ..silent };
    let restored = Page { reads: 1.0, read: 15.0, ..page };
    let waited = Page { next: 30.0, ..restored };
    let saved = Page { writes: 1.0, write: 20.0, ..waited };
    let with = |part: Part, last| Part { last: Some(last), ..part };
    let before = vec![
        part(5, silent, S::Unknown),
        with(part(15, of(0.0, 0.3, Page { reads: 1.0, ..page }), S::Restore), restored),
        part(10, of(0.1, 0.5, restored), S::Prep),
        part(100, of(0.95, 0.7, restored), S::Active),
        with(
            part(30, of(0.0, 0.7, Page { ready: 0.0, ..restored }), S::Input),
            Page { ready: 0.0, ..waited },
        ),
        part(50, of(0.95, 0.7, waited), S::Active),
        with(part(20, of(0.02, 0.7, Page { writes: 1.0, ..waited }), S::Save), saved),
        part(40, of(0.95, 0.7, saved), S::Active),
        part(8, of(0.0, 0.7, saved), S::Filled),
        part(36, of(0.95, 0.7, saved), S::Active),
    ];
    let next = |part: Part| Part { shown: Shown { pid: 8, page: None, ..part.shown }, ..part };
    let after = vec![
        part(30, of(0.95, 0.7, saved), S::Active),
        part(40, Shown::default(), S::Closed),
        next(part(5, silent, S::Unknown)),
        next(part(10, of(0.0, 0.0, page), S::Init)),
        next(part(10, of(0.0, 0.4, page), S::Prep)),
        next(part(60, of(0.95, 0.7, page), S::Active)),
        next(part(12, Shown { chips: 1, ..of(0.95, 0.7, page) }, S::Partial)),
        next(part(10, of(0.95, 0.7, page), S::Active)),
        next(part(25, of(0.0, 0.7, page), S::Stall)),
    ];
    (before, after)
}

async fn play(host: &mut ScriptedHost, parts: Vec<Part>, truth: &mut Vec<SecondState>) {
    for Part { seconds, shown, last, is } in parts {
        for second in 0..seconds {
            let page = if second + 1 == seconds { last.or(shown.page) } else { shown.page };
            host.second("7", Shown { page, ..shown }).await;
            truth.push(is);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_ledger_of_a_scripted_host_is_its_truth_second_by_second() {
    let (before, after) = script();
    let (mut host, mut truth) = (ScriptedHost::new(), Vec::new());
    play(&mut host, before, &mut truth).await;
    let key = JobKey { kind: JobKind::Slurm, id: "7".into(), uid: 1000, ..JobKey::default() };
    let kept = usize::try_from(host.kept.find(&key).unwrap().unwrap().end - START).unwrap();
    let lost = truth.len() - kept;
    assert!(
        (1..=124).contains(&lost),
        "{lost} s are lost with the agent: two minutes, and those that are not settled"
    );
    host.kill(15).await;
    truth.truncate(kept);
    truth.resize(kept + lost + 15, SecondState::Unobserved);
    play(&mut host, after, &mut truth).await;

    let question = LedgerQuestion { with_seconds: true, ..LedgerQuestion::default() };
    let answers = host.ask(question.clone()).await;
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let settled = truth.len() - 4;
    let differ: Vec<_> = (0..).zip(answer.seconds.iter().zip(&truth)).filter(|(_, (a, b))| a != b).collect();
    assert_eq!((answer.seconds.len(), differ), (settled, vec![]));
    for state in SecondState::ALL {
        let count = truth[..settled].iter().filter(|it| **it == state).count() as u64;
        assert_eq!(answer.counts.of(state), count, "{state:?}");
    }
    assert_eq!((answer.from, answer.disruptions, answer.is_running), (START, 1, true));
    let losses: Vec<_> =
        answer.losses.iter().map(|loss| (loss.state, loss.seconds, loss.longest[0].chips)).collect();
    use SecondState as S;
    let largest = [(S::Closed, 40, 0), (S::Input, 30, 3), (S::Stall, 21, 3)];
    assert_eq!(losses[..3], largest);
    let partial = answer.losses.iter().find(|loss| loss.state == S::Partial).unwrap();
    assert_eq!((partial.longest[0].chips, partial.longest[0].until - partial.longest[0].from), (2, 12));

    // A window cuts to the second.
    let second = |at: usize| Timestamp((START + i64::try_from(at).unwrap()) * SECOND_NS);
    let window = LedgerQuestion { from: Some(second(120)), until: Some(second(140)), ..question };
    let answer = host.ask(window).await.remove(0);
    assert_eq!(
        (answer.counts.productive(), answer.counts.of(S::Input), answer.counts.elapsed()),
        (10, 10, 20)
    );
    drop(host.folder);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_the_agent_saw_is_an_outage_and_one_that_it_did_not_see_is_unknown() {
    let busy = Shown { pid: 7, chips: 2, duty: Some(0.9), hbm: Some(0.5), page: None };
    let mut host = ScriptedHost::new();
    for _ in 0..30 {
        host.second("7", busy).await;
    }
    for _ in 0..30 {
        host.second("7", Shown::default()).await;
    }
    // The job is kept and no longer in memory; the agent has nothing to do but lives.
    let task = host.start();
    assert!(task.is_idle());
    for _ in 0..60 {
        let at = second_of(host.clock.now());
        host.start().ledgers.set().idle(at);
        host.pass().await;
    }
    for _ in 0..30 {
        host.second("7", Shown { pid: 8, ..busy }).await;
    }
    let answer = host.ask(LedgerQuestion::default()).await.remove(0);
    assert_eq!((answer.counts.of(SecondState::Closed), answer.counts.known()), (90, 146));
    // The agent is stopped for a minute, and for another one it is not there.
    for _ in 0..60 {
        host.pass().await;
    }
    host.second("7", Shown { pid: 8, ..busy }).await;
    host.kill(60).await;
    host.second("7", Shown { pid: 9, ..busy }).await;
    for _ in 0..5 {
        host.second("7", Shown { pid: 9, ..busy }).await;
    }
    let answer = host.ask(LedgerQuestion::default()).await.remove(0);
    assert_eq!(answer.counts.of(SecondState::Closed), 90);
    assert!(answer.counts.of(SecondState::Unobserved) >= 120, "{:?}", answer.counts);
    assert_eq!(answer.disruptions, 2, "other processes than before");
}

#[tokio::test(start_paused = true)]
async fn a_job_is_written_ten_seconds_after_its_start_and_its_end_and_every_two_minutes_between() {
    let busy = Shown { pid: 7, chips: 1, duty: Some(0.9), hbm: Some(0.5), page: None };
    let key = JobKey { kind: JobKind::Slurm, id: "7".into(), uid: 1000, ..JobKey::default() };
    let mut host = ScriptedHost::new();
    let mut written: Vec<(i64, i64)> = Vec::new();
    for second in 0..315 {
        host.second("7", if second < 300 { busy } else { Shown::default() }).await;
        let end = host.kept.find(&key).unwrap().map(|row| row.end - START);
        if end != written.last().map(|(_, end)| *end) {
            written.extend(end.map(|end| (second, end)));
        }
    }
    assert_eq!(written, [(10, 7), (130, 127), (250, 247), (310, 300)]);
    assert!(host.start().is_idle(), "what is kept leaves the memory");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_an_hour_costs_no_second() {
    let busy = Shown { pid: 7, chips: 1, duty: Some(0.9), hbm: Some(0.5), page: None };
    let mut host = ScriptedHost::new();
    for second in 0..300 {
        if second == 150 {
            host.clock.step(-3600 * SECOND_NS);
        }
        host.second("7", busy).await;
    }
    let answer = host.ask(LedgerQuestion::default()).await.remove(0);
    assert_eq!((answer.counts.elapsed(), answer.from, answer.until), (296, START - 3600, START - 3600 + 296));
    assert!(answer.counts.productive() >= 293, "{:?}", answer.counts);
    host.kill(0).await;
    host.clock.step(-7200 * SECOND_NS);
    host.second("7", busy).await;
    let answer = host.ask(LedgerQuestion::default()).await.remove(0);
    assert!(answer.counts.elapsed() <= 297 && answer.until <= second_of(host.clock.now()), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_jobs_leave_the_memory_and_are_found_again() {
    let busy = Shown { pid: 7, chips: 1, duty: Some(0.9), hbm: Some(0.5), page: None };
    let mut host = ScriptedHost::new();
    let mut most = 0;
    for job in 0..1000_u32 {
        for _ in 0..3 {
            host.second(&job.to_string(), Shown { pid: job + 1, ..busy }).await;
        }
        most = most.max(host.start().ledgers.set().jobs().count());
    }
    assert!(most <= 10, "{most} ledgers in memory");
    let question = |job: &str| LedgerQuestion { job: Some(job.to_owned()), ..LedgerQuestion::default() };
    let answer = host.ask(question("slurm:17")).await.remove(0);
    assert_eq!((answer.counts.elapsed(), answer.is_running), (3, false));
    let ledgers = Arc::clone(&host.start().ledgers);
    let refused = |question| {
        let ledgers = Arc::clone(&ledgers);
        async move { ledgers.ask(question, |job| job.key.id != "17").await.unwrap_err().to_string() }
    };
    assert_eq!(refused(question("17")).await, "there is no ledger of a job 17 that you may see");
    assert!(
        refused(question("train"))
            .await
            .starts_with("several jobs are called train: slurm:999 of uid 1000, ")
    );
}

#[tokio::test(start_paused = true)]
async fn series_say_what_the_ledger_says_while_the_job_runs() {
    let mut host = ScriptedHost::new();
    let busy = Shown { pid: 7, chips: 2, duty: Some(0.9), hbm: Some(0.5), page: None };
    for second in 0..104 {
        host.second("7", Shown { duty: Some(if second < 25 { 0.0 } else { 0.9 }), ..busy }).await;
    }
    let value = |samples: &[Sample], name: &str, reason: &str| {
        let is = |sample: &&Sample| {
            sample.metric.name == name
                && sample.labels.get("reason").is_none_or(|label| label.to_string() == reason)
        };
        samples.iter().find(is).map(|sample| match sample.value {
            SampleValue::Gauge(value) | SampleValue::Counter(value) => value,
            SampleValue::Distribution(_) => f64::NAN,
        })
    };
    let samples = host.start().ledgers.samples(Timestamp(0));
    assert!(samples.iter().all(|sample| sample.workload_label().is_some_and(|label| label.workload == "7")));
    for (name, reason, wanted) in [
        ("tpu_job_goodput_seconds", "", Some(75.0)),
        ("tpu_job_badput_seconds", "prep", Some(25.0)),
        ("tpu_job_badput_seconds", "input", Some(0.0)),
        ("tpu_job_badput_seconds", "productive", None),
        ("tpu_job_badput_seconds", "unobserved", None),
        ("tpu_job_goodput_ratio", "", Some(0.75)),
        ("tpu_job_goodput_coverage_ratio", "", Some(1.0)),
        ("tpu_job_scheduling_goodput_ratio", "", Some(1.0)),
        ("tpu_job_disruptions_total", "", Some(0.0)),
    ] {
        assert_eq!(value(&samples, name, reason), wanted, "{name} {reason}");
    }
    host.second("7", Shown::default()).await;
    assert_eq!(host.start().ledgers.samples(Timestamp(0)), []);
}
