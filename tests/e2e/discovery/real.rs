//! Real processes on a fake host.

use fakes::{fake_host::FakeHost, fake_workload::FakeWorkload, net_ns::NetNs};
use host::settings::workload::Workload;
use model::{
    device::{ChipIndex, Generation},
    job::JobKind,
    workload::{Address, EndpointKind, EndpointOrigin},
};

use super::{look, owner};

#[test]
fn every_generation_is_found_and_its_owners_too() {
    let table = [
        (Generation::V2, "v2", 2, 16),
        (Generation::V3, "v3", 2, 32),
        (Generation::V4, "v4", 1, 32),
        (Generation::V5p, "v5p", 1, 95),
        (Generation::V5e, "v5e", 1, 16),
        (Generation::V6e, "v6e", 1, 32),
        (Generation::Tpu7x, "7x", 2, 192),
    ];
    for (generation, name, cores, hbm) in table {
        let host = FakeHost::with(generation, 4);
        let chips = host.chips();
        assert_eq!(chips.len(), 4, "{name}");
        for chip in &chips {
            assert_eq!((chip.name.as_str(), chip.generation), (name, generation));
            assert_eq!((chip.cores, chip.hbm_bytes), (Some(cores), Some(hbm << 30)), "{name}");
            assert!(chip.faults.is_empty() && chip.peak.is_some() && chip.numa_node == Some(0), "{chip:?}");
            assert!(chip.nodes.iter().all(|node| node.exists()), "{chip:?}");
        }
        let holding = |index: usize| {
            chips[index].nodes.iter().fold(FakeWorkload::new(), |w, node| w.hold(node)).start()
        };
        // The container node alone makes nobody an owner.
        let bystander = FakeWorkload::new().hold(&host.dev().join("vfio/vfio")).start();
        let (first, last) = (holding(0), holding(3));
        let seen = look(&host, Workload::default());
        assert_eq!(owner(&seen, first.pid()).chips, [ChipIndex(0)], "{name}");
        assert_eq!(owner(&seen, last.pid()).chips, [ChipIndex(3)], "{name}");
        assert!(seen.owners.iter().all(|owner| owner.process.pid != bystander.pid()));
        assert_eq!(seen.owners.len(), 2);
    }
}

#[test]
fn a_new_generation_is_reported_and_its_owner_found() {
    let host = FakeHost::with(Generation::Unknown, 1);
    let chips = host.chips();
    assert_eq!(chips[0].name, "unknown TPU 0x0099");
    let holding = FakeWorkload::new().hold(&chips[0].nodes[0]).start();
    assert_eq!(owner(&look(&host, Workload::default()), holding.pid()).chips, [ChipIndex(0)]);
}

#[test]
fn an_owner_in_another_pid_namespace_has_both_pids() {
    let host = FakeHost::with(Generation::V5e, 1);
    let prefix = ["unshare", "--pid", "--fork", "--kill-child"];
    let _inside = FakeWorkload::below(&prefix).hold(&host.chips()[0].nodes[0]).start();
    let seen = look(&host, Workload::default());
    let [owner] = &seen.owners[..] else { panic!("{seen:#?}") };
    assert_eq!(owner.container_pid, Some(1));
    assert_ne!(owner.process.pid, 1);
    assert_eq!((owner.job.kind, owner.uid), (JobKind::Process, 0));
}

#[test]
fn an_owner_in_another_network_namespace_is_not_reached_over_our_loopback() {
    let host = FakeHost::with(Generation::V6e, 1);
    // Somebody here has the very port that the owner has there.
    let mut here = FakeWorkload::new().listen("127.0.0.1:0").start();
    let port = here.ports()[0];
    let netns = NetNs::new();
    let there = FakeWorkload::below(&netns.enter())
        .hold(&host.chips()[0].nodes[0])
        .listen(&format!("127.0.0.1:{port}"))
        .variable("TPUSCOPE_PROFILER_PORT", &port.to_string())
        .start();
    let seen = look(&host, Workload::default());
    let owner = owner(&seen, there.pid());
    assert!(!owner.shares_our_network);
    let [endpoint] = &owner.endpoints[..] else { panic!("{owner:#?}") };
    assert_eq!(endpoint.kind, EndpointKind::Profiler);
    assert!(
        endpoint.unreachable.as_ref().is_some_and(|why| why.contains("another network namespace")),
        "{endpoint:?}"
    );
    assert_eq!(here.counts().connections, 0);
}

#[test]
fn processes_that_share_a_port_are_told() {
    let host = FakeHost::with(Generation::V6e, 2);
    let chips = host.chips();
    let first = FakeWorkload::new().hold(&chips[0].nodes[0]).reuse_port().listen("[::]:0");
    let first = first.start();
    let port = first.ports()[0];
    let named = |chip: usize| {
        FakeWorkload::new()
            .hold(&chips[chip].nodes[0])
            .reuse_port()
            .listen(&format!("[::]:{port}"))
            .variable("TPUSCOPE_PROFILER_PORT", &port.to_string())
            .start()
    };
    let second = named(1);
    let seen = look(&host, Workload::default());
    let endpoint = &owner(&seen, second.pid()).endpoints[0];
    assert_eq!(endpoint.address, Address::Tcp(([127, 0, 0, 1], port).into()));
    assert_eq!(endpoint.origin, EndpointOrigin::Variable("TPUSCOPE_PROFILER_PORT".into()));
    let mut pids: Vec<u32> = endpoint.listeners.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    let mut want = [first.pid(), second.pid()];
    want.sort_unstable();
    assert_eq!(pids, want);
    assert_eq!(endpoint.unreachable, None, "both are owners");
}

#[test]
fn a_childs_listener_is_the_owners_when_a_variable_names_it() {
    let host = FakeHost::with(Generation::V6e, 1);
    let free = FakeWorkload::new().listen("127.0.0.1:0").start();
    let port = free.ports()[0].to_string();
    drop(free);
    let parent = FakeWorkload::new()
        .hold(&host.chips()[0].nodes[0])
        .variable("ENABLE_ORBAX_PROMETHEUS_TELEMETRY", "true")
        .variable("ORBAX_PROMETHEUS_PORT", &port)
        .child_listens(&format!("127.0.0.1:{port}"))
        .start();
    fakes::wait::eventually("the child to listen", || {
        let seen = look(&host, Workload::default());
        let endpoint = owner(&seen, parent.pid()).endpoints.first()?.clone();
        (endpoint.kind == EndpointKind::OrbaxGrain && endpoint.unreachable.is_none()).then_some(())
    });
}
