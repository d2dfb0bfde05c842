//! Profiles one process continuously, as the agent's recorder does: for tests that kill or stop what has the session.
//!
//! `profile-continuously STATE_DIR TPUSCOPE HOST:PORT PID EVERY_MS`: prints one line for each event, drains at the interval,
//! and stops at the end of its standard input. `recover` as the target only stops what is recorded in the state directory.

use std::{collections::BTreeMap, env, io::Read, path::PathBuf, process::ExitCode, thread, time::Duration};

use host::workloads::process_status;
use model::workload::ProcessKey;
use sessions::{
    continuous::{
        Continuous, ContinuousLevel, ContinuousPaths, ContinuousSession, ContinuousSpec, ContinuousStrategy,
        DrainError, GuardCommand,
    },
    profiler::Profilers,
    target::CaptureTarget,
};
use tokio::sync::oneshot;
use xprof::session::HostName;

/// How long the orderly stop may take.
const STOP: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [state, tpuscope, target, rest @ ..] = words.as_slice() else { return ExitCode::from(2) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let continuous = continuous(state, tpuscope);
        continuous.recover().await.expect("the records are readable");
        if target == "recover" {
            continuous.stopped_all().await;
            println!("recovered");
            return;
        }
        let (pid, every) = (rest.first().expect("PID"), rest.get(1).expect("EVERY_MS"));
        let every = Duration::from_millis(every.parse().expect("milliseconds"));
        let spec = ContinuousSpec {
            strategy: ContinuousStrategy::Drain,
            level: ContinuousLevel::HostAndDevices,
            every,
            max_bytes: 1 << 30,
        };
        match continuous.start(&process(target, pid.parse().expect("a pid")), spec).await {
            Ok(session) => {
                println!("started");
                record(session, every).await;
            }
            Err(error) => println!("refused {error}"),
        }
        continuous.stopped_all().await;
    });
    println!("ended");
    ExitCode::SUCCESS
}

fn continuous(state: &str, tpuscope: &str) -> std::sync::Arc<Continuous> {
    let state_dir = PathBuf::from(state);
    let guard = GuardCommand {
        program: tpuscope.into(),
        words: vec!["profiler-guard".into(), Continuous::records(&state_dir).into()],
    };
    let paths = ContinuousPaths { state_dir, procfs: "/proc".into(), cgroups: "/sys/fs/cgroup".into() };
    Continuous::new(Profilers::new("/proc".into()), paths, guard)
}

fn process(at: &str, pid: u32) -> CaptureTarget {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).expect("the process runs");
    let start_ticks = process_status::start_ticks(&stat).expect("the kernel's form");
    CaptureTarget {
        at: at.parse().expect("an address"),
        host: HostName::sanitised("test"),
        process: Some(ProcessKey { pid, start_ticks }),
        uid: None,
        user: None,
        versions: BTreeMap::new(),
        job: None,
        command: String::new(),
        chips: None,
        devices: None,
        notes: Vec::new(),
    }
}

/// Drains until the end of standard input or of the session.
async fn record(mut session: ContinuousSession, every: Duration) {
    let mut end = end_of_input();
    loop {
        tokio::select! {
            _ = &mut end => break,
            () = tokio::time::sleep(every) => {}
        }
        match session.drain(std::io::sink()).await {
            Ok(segment) => {
                let covers = segment.covers.map(|(begin, end)| (begin.0, end.0));
                let gap = segment.gap.map(|gap| gap.to.0 - gap.from.0);
                let summary = &segment.received.summary;
                println!(
                    "drained events={} bytes={} covers={covers:?} gap={gap:?}",
                    summary.events, summary.bytes
                );
            }
            Err(error @ DrainError::Lost(_)) => println!("lost {error}"),
            Err(error) => {
                println!("over {error}");
                return;
            }
        }
    }
    match session.stop(STOP).await {
        Ok(end) => println!("stopped {end:?}"),
        Err(error) => println!("open {error}"),
    }
}

/// Comes with the end of standard input.
fn end_of_input() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        // Whatever ends the input ends it.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    told
}
