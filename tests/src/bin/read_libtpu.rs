//! The libtpu source alone, as a process of its own: for tests in a network namespace, and for tests in which the
//! agent dies. Prints one JSON line a round: the child's process id, the samples, what is absent and why.
//!
//! `read-libtpu LIBRARY [--serve CHIPS] [--rounds N] [--stay]`; `--serve` first starts the metric services on their
//! fixed ports, `--stay` reads on for ever.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fake fails loudly")]
#![forbid(unsafe_code)]
use std::{
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use fakes::{
    fake_grpc::ServerAddress,
    fake_host_service::FakeHostService,
    fake_orbax::FakeOrbax,
    fake_runtime::{FakeRuntime, workload},
    libtpu::{launch, read, tick},
};
use sampling::{
    settings::libtpu::{Enabled, Settings},
    sources::libtpu::{LibtpuSource, locate::LibrarySearch},
};
use tokio::time::{Instant, sleep};

/// How long the first values may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn any(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
}

/// The three services, dual stack, on the ports that libtpu asks.
fn serve(chips: u32) -> (FakeRuntime, FakeHostService, FakeOrbax) {
    let runtime = FakeRuntime::start(ServerAddress::Tcp(any(8431)));
    let devices: Vec<i64> = (0..i64::from(chips)).collect();
    runtime.set_all(workload(&devices, 1));
    (runtime, FakeHostService::start(ServerAddress::Tcp(any(8353)), chips), FakeOrbax::start(any(9431)))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut words = std::env::args().skip(1);
    let library = PathBuf::from(words.next().expect("a library"));
    let (mut rounds, mut stay, mut served) = (1, false, None);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok()).expect("a number");
        match word.as_str() {
            "--serve" => served = Some(serve(number())),
            "--rounds" => rounds = number(),
            "--stay" => stay = true,
            _ => panic!("unknown flag {word}"),
        }
    }
    let settings = Settings { enabled: Enabled::On, path: Some(library), ..Settings::default() };
    let mut source = LibtpuSource::new(settings, LibrarySearch::of_this_process(), launch());
    let mut round = 0;
    let end = Instant::now() + PATIENCE;
    while stay || round < rounds {
        let reading = read(&mut source, &tick(0)).await;
        let waiting = reading.samples.is_empty() && Instant::now() < end;
        let line = serde_json::json!({
            "child": source.child_pid(), "samples": reading.samples, "absent": reading.absent,
        });
        if !waiting || stay {
            println!("{line}");
            round += 1;
        }
        sleep(Duration::from_millis(100)).await;
    }
    drop(served);
}
