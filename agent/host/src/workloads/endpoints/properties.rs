//! For all inputs: no process is contacted that may not be.

use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;

const PORTS: &[u16] = &[8353, 8431, 8432, 8476, 9012, 9431, 9999, 7000, 7001];
const NAMES: &[&str] = &[
    "COORDINATOR_ADDRESS",
    "ENABLE_ORBAX_PROMETHEUS_TELEMETRY",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_PROFILER_PORT",
    "MASTER_PORT",
    "MEGASCALE_COORDINATOR_ADDRESS",
    "ORBAX_PROMETHEUS_PORT",
    "TPUSCOPE_PROFILER_PORT",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_RUNTIME_METRICS_ADDRESS",
    "TPU_RUNTIME_METRICS_PORTS",
    "VBAR_CONTROL_SERVICE_URL",
];
const ADDRESSES: &[&str] = &["0.0.0.0", "127.0.0.1", "10.0.0.5", "::", "::1"];

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_ticks: 5 }
}

fn environment() -> impl Strategy<Value = Environment> {
    let value = prop_oneof![
        vec(select(PORTS), 0..3).prop_map(|ports| ports
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(",")),
        select(PORTS).prop_map(|port| format!("localhost:{port}")),
        Just("true".to_owned()),
    ];
    vec((select(NAMES), value), 0..5)
        .prop_map(|variables| variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A listener of process 1 to 5, of which 1 to 3 are owners and 4 is a child of 1.
fn listener() -> impl Strategy<Value = PortListener> {
    (select(ADDRESSES), select(PORTS), 1..=2_u64, vec(1..=5_u32, 0..3), any::<u32>(), any::<bool>()).prop_map(
        |(ip, port, namespace, pids, inode, root)| PortListener {
            namespace,
            address: SocketAddr::new(ip.parse().unwrap(), port),
            inode: u64::from(inode),
            uid: if root { 0 } else { 1000 },
            processes: pids
                .into_iter()
                .map(|pid| ListenerProcess {
                    process: key(pid),
                    owner: match pid {
                        1..=3 => Some(key(pid)),
                        4 => Some(key(1)),
                        _ => None,
                    },
                })
                .collect(),
        },
    )
}

fn configured() -> impl Strategy<Value = Vec<StaticEndpoint>> {
    let kind = select(&[EndpointKind::Profiler, EndpointKind::RuntimeMetrics, EndpointKind::HostService][..]);
    let one = (kind, select(PORTS)).prop_map(|(kind, port)| StaticEndpoint {
        kind,
        address: Address::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)),
    });
    vec(one, 0..2)
}

/// Whether a call to `address` in our namespace could end at a listener that satisfies `bad`.
fn could_reach(listeners: &[PortListener], address: SocketAddr, bad: impl Fn(&PortListener) -> bool) -> bool {
    listeners.iter().any(|at| at.namespace == 1 && covers(at.address, address) && bad(at))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_contacted_who_should_not_be(
        environments in vec((environment(), option::of(1..=2_u64)), 3),
        listeners in vec(listener(), 0..8),
        configured in configured(),
        probe in any::<bool>(),
    ) {
        let owners: Vec<OwnerInputs<'_>> = environments.iter().zip(1..).map(|((environment, namespace), pid)| OwnerInputs {
            process: key(pid),
            uid: 1000,
            holds_chips: true,
            environment,
            namespace: *namespace,
            metrics_socket: None,
        }).collect();
        let inputs = EndpointInputs {
            owners: &owners,
            listeners: &listeners,
            our_namespace: Some(1),
            local_addresses: &["10.0.0.5".parse().unwrap()],
            configured: &configured,
            probe,
            profilers: &listeners.iter().map(|at| at.inode).filter(|inode| inode % 2 == 0).collect(),
            chips: true,
        };
        let plan = plan(&inputs);
        let private: BTreeSet<u16> = owners.iter().filter(|owner| owner.namespace == Some(1))
            .flat_map(|owner| environment::private_ports(owner.environment).into_keys()).collect();
        let own = plan.owners.iter().zip(&owners).flat_map(|(plan, owner)| plan.endpoints.iter().map(move |at| (Some(owner), at)));
        for (owner, endpoint) in own.chain(plan.shared.iter().map(|at| (None, at))) {
            let Address::Tcp(at) = endpoint.address else { continue };
            if endpoint.unreachable.is_some() {
                continue;
            }
            // Never the workload's own traffic.
            prop_assert!(!private.contains(&at.port()), "{endpoint:?}");
            if endpoint.origin == EndpointOrigin::Config {
                continue;
            }
            if let Some(owner) = owner {
                // Never another namespace, and never an unrelated process, not even one that shares the port.
                prop_assert_eq!(owner.namespace, Some(1));
                let unrelated = |at: &PortListener| opener(at).is_none_or(|opener| opener.owner.is_none());
                prop_assert!(!could_reach(&listeners, at, unrelated), "{endpoint:?}");
                let its = |at: &PortListener| opener(at).is_some_and(|opener| opener.owner == Some(owner.process));
                prop_assert!(could_reach(&listeners, at, its), "{endpoint:?}");
            } else {
                prop_assert_eq!(endpoint.kind, EndpointKind::HostService);
                prop_assert!(!could_reach(&listeners, at, |at| at.uid != 0 && at.uid != 1000), "{endpoint:?}");
            }
        }
        for candidate in &plan.candidates {
            prop_assert!(probe && !private.contains(&candidate.address.port()));
            prop_assert!(listeners.iter().any(|at| at.inode == candidate.inode && at.namespace == 1));
        }
    }
}
