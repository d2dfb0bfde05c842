//! An agent that is killed at random instants of captures and uploads: what it reported as stored is in the bucket at
//! last, whole and once, and nothing else is.
//!
//! `TPUSCOPE_SOAK_ROUNDS` is how often it is killed (default 20), `TPUSCOPE_SOAK_SEED` repeats the instants of a run.

use std::{
    collections::BTreeMap,
    env,
    thread::sleep,
    time::{Duration, Instant},
};

use fakes::{fake_gcs::FakeGcs, fake_profiler::FakeProfiler};
use fastrand::Rng;

use super::{
    agent::{UploadAgent, made_once},
    faults::{profilers, setup},
};

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// How long a capture and an upload take when nobody disturbs them.
struct Usual {
    capture: Duration,
    upload: Duration,
}

impl Usual {
    fn measure(agent: &UploadAgent, server: &FakeGcs) -> Self {
        let begin = Instant::now();
        agent.capture("undisturbed");
        let captured = Instant::now();
        agent.arrives(server, "undisturbed");
        Self { capture: captured - begin, upload: captured.elapsed() }
    }
}

/// One kill: in a capture, or in the upload after it. Whether the capture was reported as stored.
fn round(agent: &mut UploadAgent, session: &str, usual: &Usual, random: &mut Rng) -> bool {
    let mut capture = Some(agent.ask_later(&["capture", "--session", session, "--duration", "1ms"]));
    let mut ended = None;
    let within = if random.bool() {
        usual.capture
    } else {
        ended = capture.take().map(fakes::command::RunningCommand::end);
        usual.upload
    };
    // A little longer than usual: the end counts too.
    sleep(within.mul_f64(random.f64() * 1.1));
    agent.kill();
    let ended = ended.unwrap_or_else(|| capture.expect("not ended before").end());
    agent.restart();
    // 6: the agent is gone; what it was saying of the capture is lost with it.
    assert!(matches!(ended.code, Some(0 | 6)), "{session}: {ended:?}\n{}", agent.log());
    ended.code == Some(0)
}

#[test]
fn what_was_reported_as_stored_survives_every_kill() {
    let rounds = variable("TPUSCOPE_SOAK_ROUNDS").unwrap_or(20);
    let seed = variable("TPUSCOPE_SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{rounds} kills with TPUSCOPE_SOAK_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let (server, profilers): (_, [FakeProfiler; 2]) = (FakeGcs::start(), profilers());
    let mut agent = UploadAgent::start(&server, setup(&profilers));
    let usual = Usual::measure(&agent, &server);
    let mut reported = BTreeMap::new();
    for number in 0..rounds {
        let session = format!("round-{number}");
        if round(&mut agent, &session, &usual, &mut random) {
            let files = agent.files(&session);
            assert_eq!(files.len(), 3, "{session} is whole: {:?}", files.keys());
            reported.insert(session, files);
        }
    }
    let sessions = agent.sessions();
    for session in &sessions {
        agent.arrives(&server, session);
        agent.reaches(session, "done");
    }
    for (session, files) in &reported {
        assert!(sessions.contains(session), "{session} was reported as stored");
        assert!(agent.files(session) == *files, "{session} is what it was");
    }
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), Vec::from_iter(agent.objects_of(&sessions)));
    made_once(&server);
    let unfinished = server.open_uploads().len();
    println!(
        "{} of {rounds} captures were reported as stored, {} sessions are in the bucket, {} requests, \
         {unfinished} hidden uploads that were begun and not known",
        reported.len(),
        sessions.len(),
        server.requests().len(),
    );
}
