//! Processes that listen on one port, as JAX's profiler server allows it: a call reaches one of them, and the part says so.

use std::{
    net::{Ipv6Addr, SocketAddrV6},
    os::fd::{AsRawFd, OwnedFd},
};

use fakes::{
    command::{Ended, start},
    jax_job::JaxJob,
};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, setsockopt, socket, sockopt,
};

/// Listens on a port beside others.
fn listen_beside(port: u16) -> OwnedFd {
    let other = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&other, sockopt::ReusePort, &true).unwrap();
    let at = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    bind(other.as_raw_fd(), &SockaddrIn6::from(at)).unwrap();
    listen(&other, Backlog::new(1).unwrap()).unwrap();
    other
}

/// The warnings of the only part.
fn warnings(ended: &Ended) -> String {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_eq!(report["parts"].as_array().map(Vec::len), Some(1), "{report}");
    report["parts"][0]["warnings"].to_string()
}

#[test]
fn a_port_that_is_shared_or_comes_to_be_is_told() {
    let job = JaxJob::new().step_ms(20).tell_traces().start();
    let (target, folder) = (job.target(), tempfile::tempdir().unwrap());

    let arguments = ["capture", "--target", &target, "--duration", "2s", "--json"];
    let capture = start(folder.path(), &arguments);
    job.says("traced");
    let other = listen_beside(job.port());
    let told = warnings(&capture.end());
    assert!(told.contains("another process came to listen on"), "{told}");
    drop(other);
    let told = warnings(&start(folder.path(), &arguments).end());
    assert!(!told.contains("listen on"), "{told}");

    let _second = JaxJob::new().step_ms(20).port(job.port()).start();
    let told = warnings(&start(folder.path(), &arguments).end());
    assert!(told.contains("is shared by the processes "), "{told}");
}
