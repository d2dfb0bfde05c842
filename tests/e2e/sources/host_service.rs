//! The host's VBARControl service.

use std::sync::Arc;

use fakes::{
    fake_grpc::{Manner, Reply, ServerAddress},
    fake_host_service::{FakeHostService, metrics},
    wait::eventually_async,
};
use model::{
    catalog::of_origin,
    device::Generation,
    sample::Origin,
    workload::{Address, EndpointKind, EndpointOrigin, Workloads},
};
use sampling::sources::{Tick, host_service::HostServiceSource};

use super::{chips, gauges, read, why};

fn local() -> ServerAddress {
    ServerAddress::Tcp("127.0.0.1:0".parse().unwrap())
}

fn at(address: Address) -> Tick {
    super::tick(EndpointKind::HostService, &[address], &chips(Generation::V6e, 4))
}

#[tokio::test]
async fn every_chip_and_link_and_only_the_one_call() {
    let fake = FakeHostService::start(local(), 4);
    let sent = metrics(4, 1);
    let (mut source, mut tick) = (HostServiceSource::default(), at(Address::Tcp(fake.address())));
    let reading = read(&mut source, &mut tick).await;
    let utilization = gauges(&reading, "tpu_chip_tensorcore_utilization_ratio");
    for (chip, (entry, got)) in (0..).zip(sent.metrics_data.iter().zip(&utilization)) {
        let percent = f64::from(entry.metrics[0].utilization);
        assert_eq!((got.0, got.1), (Some(chip), None));
        assert!((got.2 - percent / 100.0).abs() < 1e-9);
    }
    assert_eq!(utilization.len(), 4);
    assert_eq!(gauges(&reading, "tpu_chip_hbm_bandwidth_utilization_ratio").len(), 4);
    assert_eq!(gauges(&reading, "tpu_ici_link_health_score").len(), 16);
    assert_eq!(gauges(&reading, "tpu_chip_throttle_score").len(), 4);
    assert_eq!(reading.absent, []);
    for (metric, _) in of_origin(Origin::HostService) {
        assert!(!gauges(&reading, &metric.name).is_empty(), "the fake has no {}", metric.name);
    }
    for _ in 0..3 {
        read(&mut source, &mut tick).await;
    }
    assert_eq!((fake.asked(), fake.forbidden()), (4, 0));
}

#[tokio::test]
async fn over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vbar.sock");
    let _fake = FakeHostService::start(ServerAddress::Unix(path.clone()), 2);
    let reading = read(&mut HostServiceSource::default(), &mut at(Address::Unix(path))).await;
    assert_eq!(gauges(&reading, "tpu_chip_tensorcore_utilization_ratio").len(), 2);
}

#[tokio::test]
async fn what_is_wrong_is_said_and_over_when_it_is_over() {
    let fake = FakeHostService::start(local(), 1);
    let (mut source, mut tick) = (HostServiceSource::default(), at(Address::Tcp(fake.address())));
    for (reply, says) in [
        (Reply::Status(12, "unimplemented".into()), "status 12"),
        (Reply::Message(vec![0xff; 3].into()), "cannot be read"),
        (Reply::Hang, "no answer within 500 ms"),
    ] {
        fake.set_reply(reply);
        let reading = read(&mut HostServiceSource::default(), &mut tick).await;
        assert_eq!(reading.samples, []);
        assert!(why(&reading, &fake.address().to_string()).contains(says));
    }
    fake.set_manner(Manner::Silent);
    read(&mut source, &mut tick).await;
    fake.set_manner(Manner::Polite);
    fake.set_reply(Reply::of(&metrics(1, 1)));
    eventually_async("the service to be read again", async || {
        let reading = read(&mut source, &mut tick).await;
        if reading.samples.is_empty() { Err(format!("{:?}", reading.absent)) } else { Ok(()) }
    })
    .await;
    assert_eq!(fake.forbidden(), 0);
}

#[tokio::test]
async fn a_host_without_it_says_so() {
    let mut tick = super::tick(EndpointKind::HostService, &[], &chips(Generation::V6e, 1));
    let reading = read(&mut HostServiceSource::default(), &mut tick).await;
    assert_eq!(reading.absent, []);
    assert!(reading.unused.is_some_and(|why| why.contains("8353")));
}

#[tokio::test]
async fn a_host_that_had_it_misses_it() {
    let fake = FakeHostService::start(local(), 1);
    let mut tick = at(Address::Tcp(fake.address()));
    let named_by_the_settings = tick.clone();
    let mut found = Workloads::clone(&tick.host.workloads);
    found.endpoints[0].origin = EndpointOrigin::KnownDefault;
    tick.host.workloads = Arc::new(found);
    let mut without = super::tick(EndpointKind::HostService, &[], &chips(Generation::V6e, 4));
    let mut source = HostServiceSource::default();
    assert!(!read(&mut source, &mut tick).await.samples.is_empty());
    for _ in 0..2 {
        let reading = read(&mut source, &mut without).await;
        assert!(why(&reading, &fake.address().to_string()).contains("no longer listens"));
        assert_eq!(reading.unused, None);
    }
    assert_eq!(read(&mut source, &mut tick).await.absent, []);
    // Another address is one of the settings or of a process, and ends with them.
    let mut source = HostServiceSource::default();
    assert!(!read(&mut source, &mut named_by_the_settings.clone()).await.samples.is_empty());
    assert!(read(&mut source, &mut without).await.unused.is_some());
}
