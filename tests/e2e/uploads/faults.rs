//! Uploads of an agent to a bucket that answers with errors, is cut off, hangs or lies.

use std::time::Duration;

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    wait::until,
};

use super::agent::{Setup, UploadAgent, made_once};

/// A profiler with a small trace, and one whose trace goes up in parts.
pub(super) fn profilers() -> [FakeProfiler; 2] {
    [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace_of(12 << 20, 1)))]
}

pub(super) fn setup(profilers: &[FakeProfiler]) -> Setup {
    Setup { profilers: profilers.iter().map(FakeProfiler::target).collect(), ..Setup::default() }
}

/// Each kind of request that an upload of [`profilers`] makes: its method and what its target contains.
fn calls(profilers: &[FakeProfiler; 2]) -> [(&'static str, String); 9] {
    let file = |profiler: &FakeProfiler| {
        let target = profiler.target();
        format!("_{}.xplane.pb", target.rsplit_once(':').unwrap().1)
    };
    let (small, large) = (file(&profilers[0]), file(&profilers[1]));
    [
        ("PUT", "/.tpuscope/".to_owned()),
        ("PUT", small.clone()),
        ("HEAD", small),
        ("POST", format!("{large}?uploads=")),
        ("PUT", format!("{large}?partNumber=1&")),
        ("POST", format!("{large}?uploadId=")),
        ("HEAD", large),
        ("PUT", "manifest.json".to_owned()),
        ("HEAD", "manifest.json".to_owned()),
    ]
}

/// One session whose upload meets `effect` once at each of its calls; what is there at its end.
fn survives(effect: &GcsEffect, settings: &str) -> FakeGcs {
    let (server, profilers) = (FakeGcs::start(), profilers());
    for (method, target) in calls(&profilers) {
        server.fault(GcsFault::new(effect.clone()).on(method).containing(&target));
    }
    let agent = UploadAgent::start(&server, Setup { settings: settings.to_owned(), ..setup(&profilers) });
    agent.capture("one");
    agent.arrives(&server, "one");
    agent.reaches("one", "done");
    assert_eq!(server.unused_faults(), 0, "every call was met: {:#?}", server.requests());
    server
}

/// How often a part of this number was stored.
fn parts_stored(server: &FakeGcs, number: &str) -> usize {
    let parts = server.requests().into_iter().filter(|one| one.committed);
    parts.filter(|one| one.query.get("partNumber").is_some_and(|found| found == number)).count()
}

/// The same, and nothing was made twice.
fn survives_once(effect: &GcsEffect, settings: &str) {
    made_once(&survives(effect, settings));
}

/// The same with a status, before and after the call took effect.
fn survives_status(status: u16) {
    for moment in [Moment::BeforeCommit, Moment::AfterCommit] {
        survives_once(&GcsEffect::Status(status, moment), "");
    }
}

#[test]
fn each_call_fails_once_with_408() {
    survives_status(408);
}

#[test]
fn each_call_fails_once_with_429() {
    survives_status(429);
}

#[test]
fn each_call_fails_once_with_500() {
    survives_status(500);
}

#[test]
fn each_call_fails_once_with_503() {
    survives_status(503);
}

#[test]
fn each_call_is_cut_off_once() {
    survives_once(&GcsEffect::CutRequest(0), "");
    survives_once(&GcsEffect::CutAnswer, "");
}

#[test]
fn each_call_hangs_once() {
    let settings = "[upload]\nidle_timeout = '1s'\n";
    for moment in [Moment::BeforeCommit, Moment::AfterCommit] {
        survives_once(&GcsEffect::Hang(moment), settings);
    }
}

#[test]
fn a_part_that_is_cut_off_in_its_middle_is_sent_again_and_the_others_are_not() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.fault(GcsFault::new(GcsEffect::CutRequest(1 << 20)).containing("partNumber=2&"));
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    agent.arrives(&server, "one");
    made_once(&server);
    assert_eq!((parts_stored(&server, "1"), parts_stored(&server, "2")), (1, 1));
}

#[test]
fn a_bucket_that_is_slow_is_waited_for() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    // Byte for byte, for several times the idle time.
    server.fault(GcsFault::new(GcsEffect::Slow(1, Duration::from_millis(15))).on("HEAD"));
    let settings = "[upload]\nidle_timeout = '2s'\n".to_owned();
    let agent = UploadAgent::start(&server, Setup { settings, ..setup(&profilers) });
    agent.capture("one");
    agent.arrives(&server, "one");
    made_once(&server);
    assert!(server.requests().iter().all(|request| request.status == Some(200)), "nothing was given up");
}

#[test]
fn an_etag_that_is_wrong_once_stops_nothing() {
    // The parts are not what was sent, as far as the bucket says: they go up again.
    survives(&GcsEffect::WrongEtag, "");
}

#[test]
fn a_size_or_checksum_that_is_wrong_once_is_compared_again() {
    survives(&GcsEffect::WrongSize, "");
    survives(&GcsEffect::WrongCrc, "");
}

#[test]
fn an_object_that_stays_wrong_is_given_up_and_the_session_is_not_shown() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.fault(GcsFault::new(GcsEffect::WrongCrc).on("HEAD").containing(".xplane.pb").always());
    let agent = UploadAgent::start(&server, setup(&profilers[..1]));
    agent.capture("one");
    let upload = agent.reaches("one", "failed");
    assert_eq!(upload["failure"]["class"], "damaged", "{upload}");
    assert!(!server.objects().contains_key("runs/plugins/profile/one/manifest.json"));
    server.clear_faults();
    assert_eq!(agent.ask(&["uploads", "retry", "one"]).code, Some(0));
    agent.arrives(&server, "one");
}

#[test]
fn without_a_checksum_of_the_bucket_the_session_is_there_unverified() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.fault(GcsFault::new(GcsEffect::NoHash).always());
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    agent.arrives(&server, "one");
    made_once(&server);
    let upload = agent.reaches("one", "done");
    assert_eq!(upload["unverified_files"], 3, "{upload}");
}

#[test]
fn a_clock_that_is_an_hour_off_decides_nothing() {
    for hours in [-1, 1] {
        let (server, profilers) = (FakeGcs::start(), profilers());
        server.set_clock_offset(jiff::SignedDuration::from_hours(hours));
        let agent = UploadAgent::start(&server, setup(&profilers));
        agent.capture("one");
        agent.arrives(&server, "one");
        agent.reaches("one", "done");
        made_once(&server);
    }
}

#[test]
fn an_upload_goes_on_where_it_was_after_a_stop_and_after_a_kill() {
    const PARTS: usize = 6;
    for is_killed in [false, true] {
        let server = FakeGcs::start();
        let large = FakeProfiler::start(Mode::Trace(trace_of((PARTS * 8 - 4) << 20, 1)));
        let last = format!("partNumber={PARTS}&");
        server.fault(GcsFault::new(GcsEffect::Hang(Moment::BeforeCommit)).containing(&last));
        let mut agent = UploadAgent::start(&server, setup(std::slice::from_ref(&large)));
        agent.capture("one");
        until("all parts but one", || agent.upload("one")["sent_bytes"] == (PARTS as u64 - 1) * (8 << 20));
        if is_killed {
            agent.kill();
        } else {
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        }
        agent.restart();
        agent.arrives(&server, "one");
        agent.reaches("one", "done");
        made_once(&server);
        let stored: usize = (1..=PARTS).map(|number| parts_stored(&server, &number.to_string())).sum();
        // The last one may have been counted and not yet noted.
        assert!((PARTS..=PARTS + 1).contains(&stored), "{stored} parts were stored");
    }
}
