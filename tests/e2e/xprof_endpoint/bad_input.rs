//! Clients that ask for what cannot be, or go away.

use std::time::Duration;

use fakes::{
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    jax_job::JaxJob,
    profiler_probe::becomes_free,
    wait::until,
};
use proto::tensorflow::{
    ProfileRequest, TerminateRequest, profiler::XSpace, profiler_service_client::ProfilerServiceClient,
};
use tonic::{Code, transport::Endpoint};
use xprof::framing::framed;

use super::{
    XprofAgent, request,
    rights::{block_on, profile},
};

#[test]
fn a_request_that_cannot_be_is_refused_before_any_workload_is_called() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let xprof = XprofAgent::start(&[fake.target()]);
    let refused = |request: ProfileRequest, what: &str| {
        let error = block_on(profile(&xprof.at(), request)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().contains(what), "{error:?}");
    };
    refused(ProfileRequest { session_id: "../../etc".to_owned(), ..request(10) }, "session_id: ");
    refused(ProfileRequest { host_name: "../x".to_owned(), ..request(10) }, "host_name: ");
    refused(ProfileRequest { repository_root: "/a/../../b".to_owned(), ..request(10) }, "repository_root: ");
    refused(request(1 << 63), "too long: at most 5m");
    refused(request(0), "too short");
    let denied = |name: &str| {
        let mut request = request(10);
        let option = proto::tensorflow::profile_options::AdvancedConfigValue::default();
        request.opts.as_mut().unwrap().advanced_configuration.insert(name.to_owned(), option);
        request
    };
    assert!(block_on(profile(&xprof.at(), denied("no_value"))).is_ok(), "an option without a value is none");
    assert_eq!(fake.seen().profiles.len(), 1);
    let sent = &fake.seen().profiles[0];
    assert!(sent.repository_root.is_empty() && sent.session_id.starts_with("tpuscope-"), "{sent:?}");
}

#[test]
fn a_process_without_a_trace_is_named_also_where_one_trace_is_left() {
    let sound = FakeProfiler::start(Mode::Trace(trace()));
    let dies = FakeProfiler::start(Mode::HalfThenGone);
    let xprof = XprofAgent::start(&[sound.target(), dies.target()]);
    let answer = block_on(profile(&xprof.at(), request(10))).unwrap().xspace.unwrap();
    let missing = answer.warnings.iter().filter(|warning| warning.contains(" is missing: "));
    let missing: Vec<_> = missing.collect();
    assert!(missing.len() == 1 && missing[0].contains(&dies.target()), "{missing:?}");
    let warnings = trace().warnings;
    assert_eq!(XSpace { warnings, ..answer }, trace(), "its trace is unchanged");
    let log = xprof.agent.log();
    assert!(log.contains("capture passed on session=") && !log.contains("capture kept"), "{log}");
    xprof.nothing_is_kept();
}

#[test]
fn a_client_that_hangs_up_leaves_nothing() {
    // In the window: the workload answers only when it is over.
    let job = JaxJob::new().start();
    let xprof = XprofAgent::start(&[job.target()]);
    let hung_up = async {
        let at = xprof.at();
        let call = profile(&at, request(60_000));
        tokio::time::timeout(Duration::from_secs(2), call).await.unwrap_err();
    };
    block_on(hung_up);
    becomes_free(&job.target());
    xprof.nothing_is_kept();

    // In mid-answer: the answer is larger than all that waits on the way.
    let fake = FakeProfiler::start(Mode::Trace(trace_of(64 << 20, 1)));
    let xprof = XprofAgent::start(&[fake.target()]);
    let begun = async {
        let stream = tokio::net::TcpStream::connect(xprof.at()).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let post = http::Request::post(format!("http://{}/tensorflow.ProfilerService/Profile", xprof.at()));
        let post = post.header("content-type", "application/grpc").body(()).unwrap();
        let (response, mut body) = client.send_request(post, false).unwrap();
        body.send_data(framed(&request(10)), true).unwrap();
        let mut answer = response.await.unwrap().into_body();
        assert!(!answer.data().await.unwrap().unwrap().is_empty());
    };
    block_on(begun);
    until("the workload's call to be given up", || fake.seen().given_up == 1);
    xprof.nothing_is_kept();
    until("the end to be in the log", || xprof.agent.log().contains("capture failed"));
    let log = xprof.agent.log();
    assert!(log.contains("reason=\"cancelled\"") && !log.contains("connection_lost"), "{log}");
}

#[test]
fn a_profile_ends_early_when_its_caller_says_so() {
    let job = JaxJob::new().tell_traces().start();
    let xprof = XprofAgent::start(&[job.target()]);
    let at = xprof.at();
    let profile = std::thread::spawn(move || block_on(profile(&at, request(60_000))));
    job.says("traced");
    let terminate = async {
        let channel =
            Endpoint::from_shared(format!("http://{}", xprof.at())).unwrap().connect().await.unwrap();
        let mut client = ProfilerServiceClient::new(channel);
        let other = client.terminate(TerminateRequest { session_id: "another".to_owned() }).await;
        other.unwrap();
        client.terminate(TerminateRequest { session_id: "asked".to_owned() }).await.unwrap();
    };
    block_on(terminate);
    assert!(profile.join().unwrap().unwrap().xspace.is_some());
    becomes_free(&job.target());
}
