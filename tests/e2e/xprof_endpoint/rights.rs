//! A caller may do what the user of its connection may do on the socket.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::Path,
};

use fakes::{
    fake_profiler::{FakeProfiler, Mode, trace},
    running_agent::Home,
    wait::until,
};
use nix::unistd::setfsuid;
use proto::tensorflow::{
    MonitorRequest, ProfileRequest, ProfileResponse, profiler_service_client::ProfilerServiceClient,
};
use tonic::{Code, Status, transport::Endpoint};

use super::{XprofAgent, read, relay::Relay, request};

const SOMEBODY: u32 = 54321;

/// Runs calls on the agent's own client.
pub(super) fn block_on<T>(calls: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(calls)
}

pub(super) async fn profile(at: &str, request: ProfileRequest) -> Result<ProfileResponse, Status> {
    let channel = Endpoint::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
    let mut client = ProfilerServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    client.profile(request).await.map(tonic::Response::into_inner)
}

async fn monitor(at: &str) -> Result<String, Status> {
    let channel = Endpoint::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
    let mut client = ProfilerServiceClient::new(channel);
    client.monitor(MonitorRequest::default()).await.map(|shown| shown.into_inner().data)
}

#[test]
fn a_user_has_the_rights_of_the_socket_unless_anyone_may_profile() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let xprof = XprofAgent::start(&[fake.target()]);
    // The tests run as root, who may profile everything.
    let answer = block_on(profile(&xprof.at(), request(10))).unwrap();
    assert_eq!(answer.xspace, Some(trace()), "unchanged");

    let somebody = Relay::of_user(SOMEBODY, xprof.port);
    let refused = block_on(profile(&somebody.at, request(10))).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(block_on(monitor(&somebody.at)).unwrap().contains("No chip"), "everyone may read");
    // Root of a container in the host's network is not the host's root.
    let contained = Relay::start(&["unshare", "--pid", "--fork", "--kill-child"], xprof.port);
    let refused = block_on(profile(&contained.at, request(10))).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert_eq!(fake.seen().profiles.len(), 1, "nobody else's call reached the workload");

    let anyone = XprofAgent::start_with(&[fake.target()], &["TPUSCOPE_API__XPROF_ANYONE=true"]);
    let somebody = Relay::of_user(SOMEBODY, anyone.port);
    assert_eq!(block_on(profile(&somebody.at, request(10))).unwrap().xspace, Some(trace()));
    let stop = async {
        let at = format!("http://{}", somebody.at);
        let channel = Endpoint::from_shared(at).unwrap().connect().await.unwrap();
        let mut client = ProfilerServiceClient::new(channel);
        client.stop_continuous_profiling(proto::tensorflow::StopContinuousProfilingRequest {}).await
    };
    assert_eq!(block_on(stop).unwrap_err().code(), Code::NotFound, "it has no job");
}

#[test]
fn a_file_is_written_as_the_user_of_the_client_or_not_at_all() {
    let home = Home::new();
    let (own, others) = (home.path().join("own"), home.path().join("others"));
    for folder in [&own, &others] {
        fs::create_dir(folder).unwrap();
    }
    chown(&own, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let roots = format!("TPUSCOPE_API__XPROF_ROOTS=['{}']", home.path().display());
    let xprof = XprofAgent::start_with(&[fake.target()], &["TPUSCOPE_API__XPROF_ANYONE=true", &roots]);
    let somebody = Relay::of_user(SOMEBODY, xprof.port);
    let asked = |root: &Path| ProfileRequest {
        emit_xspace: false,
        repository_root: root.join("plugins/profile").display().to_string(),
        host_name: "localhost:4392".to_owned(),
        ..request(10)
    };
    let answer = block_on(profile(&somebody.at, asked(&own))).unwrap();
    assert_eq!(answer, ProfileResponse::default(), "as a server that has written the file");
    let file = own.join("plugins/profile/asked/localhost_4392.xplane.pb");
    assert_eq!(read(&file), trace());
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (SOMEBODY, SOMEBODY, 0o644));

    let refused = block_on(profile(&somebody.at, asked(&others))).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("the trace was not written: "), "{refused:?}");
    assert_eq!(fs::read_dir(&others).unwrap().count(), 0);

    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), own.join("link")).unwrap();
    let refused = block_on(profile(&xprof.at(), asked(&own.join("link")))).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("link is a link or no folder"), "{refused:?}");
    assert_eq!(
        fs::read_dir(elsewhere.path()).unwrap().count(),
        0,
        "root is not led out of the folder either"
    );

    // Elsewhere the client writes.
    let answer = block_on(profile(&somebody.at, asked(elsewhere.path()))).unwrap();
    assert_eq!(answer.tool_data.len(), 1);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    // The files of a container are others.
    let contained = Relay::start(&["unshare", "--pid", "--fork", "--kill-child"], xprof.port);
    assert_eq!(block_on(profile(&contained.at, asked(&others))).unwrap().tool_data.len(), 1);
    assert_eq!(fs::read_dir(&others).unwrap().count(), 0);
}

#[test]
fn a_socket_whose_process_is_not_its_users_has_no_rights() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let xprof = XprofAgent::start(&[fake.target()]);
    let at = xprof.at();
    // Only this thread makes sockets of another user.
    let refused = std::thread::spawn(move || {
        setfsuid(nix::unistd::Uid::from_raw(SOMEBODY));
        block_on(profile(&at, request(10))).unwrap_err()
    });
    let refused = refused.join().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    until("no call to reach the workload", || fake.seen().profiles.is_empty());
}
