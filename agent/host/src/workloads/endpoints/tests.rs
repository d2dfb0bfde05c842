//! The rules, one by one. Owner A is process 10 and owner B process 20; 30 is unrelated.

use super::*;

const OURS: u64 = 1;
const THEIRS: u64 = 2;

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_ticks: u64::from(pid) }
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn owner(pid: u32, environment: &Environment) -> OwnerInputs<'_> {
    OwnerInputs {
        process: key(pid),
        uid: 1000,
        holds_chips: true,
        environment,
        namespace: Some(OURS),
        metrics_socket: None,
    }
}

/// A listener of `pid`; of an unrelated process unless it is 10 or 20 or their child 11 or 21.
fn listener(address: &str, pid: u32) -> PortListener {
    let address: SocketAddr = address.parse().unwrap();
    let owner = [10, 20].into_iter().find(|owner| (*owner..*owner + 2).contains(&pid)).map(key);
    let processes = vec![ListenerProcess { process: key(pid), owner }];
    PortListener {
        namespace: OURS,
        address,
        inode: u64::from(address.port()) << 16 | u64::from(pid),
        uid: 1000,
        processes,
    }
}

struct Given<'a> {
    owners: Vec<OwnerInputs<'a>>,
    listeners: Vec<PortListener>,
    configured: Vec<StaticEndpoint>,
    probe: bool,
    profilers: BTreeSet<u64>,
}

impl<'a> Given<'a> {
    fn new(owners: Vec<OwnerInputs<'a>>, listeners: Vec<PortListener>) -> Self {
        Self { owners, listeners, configured: Vec::new(), probe: false, profilers: BTreeSet::new() }
    }

    fn plan(&self) -> EndpointPlan {
        plan(&EndpointInputs {
            owners: &self.owners,
            listeners: &self.listeners,
            our_namespace: Some(OURS),
            local_addresses: &["10.0.0.5".parse().unwrap()],
            configured: &self.configured,
            probe: self.probe,
            profilers: &self.profilers,
            chips: true,
        })
    }

    /// Kind and address of what can be reached, by owner.
    fn reachable(&self) -> Vec<Vec<(EndpointKind, String)>> {
        let reachable = |endpoints: &Vec<Endpoint>| {
            let open = endpoints.iter().filter(|endpoint| endpoint.unreachable.is_none());
            open.map(|endpoint| (endpoint.kind, endpoint.address.to_string())).collect()
        };
        self.plan().owners.iter().map(|plan| reachable(&plan.endpoints)).collect()
    }
}

fn metrics(address: &str) -> (EndpointKind, String) {
    (EndpointKind::RuntimeMetrics, address.to_owned())
}

fn profiler(address: &str) -> (EndpointKind, String) {
    (EndpointKind::Profiler, address.to_owned())
}

#[test]
fn a_default_counts_only_where_the_owner_itself_listens() {
    let none = Environment::new();
    let given = Given::new(
        vec![owner(10, &none)],
        vec![listener("127.0.0.1:8431", 10), listener("[::]:9012", 10), listener("0.0.0.0:9999", 30)],
    );
    assert_eq!(given.reachable(), [vec![metrics("127.0.0.1:8431"), profiler("127.0.0.1:9012")]]);
    // A child's listener is no default of its parent.
    let given = Given::new(vec![owner(10, &none)], vec![listener("127.0.0.1:9999", 11)]);
    assert_eq!(given.reachable(), [vec![]]);
    assert!(given.plan().owners[0].no_metrics.as_ref().unwrap().contains("does not listen on 8431"));
}

#[test]
fn ports_of_the_workloads_own_traffic_are_never_contacted() {
    for variables in [
        [("MASTER_PORT", "9012")],
        [("TPU_PROCESS_PORT", "9012")],
        [("TPU_PROCESS_ADDRESSES", "localhost:8476,localhost:9012")],
        [("MEGASCALE_COORDINATOR_ADDRESS", "10.0.0.1:9012")],
        [("MEGASCALE_PORT", "9012")],
        [("JAX_COORDINATOR_ADDRESS", "localhost:9012")],
        [("COORDINATOR_ADDRESS", "[::1]:9012")],
    ] {
        let mut environment = environment(&variables);
        for extra in
            [None, Some(("TPUSCOPE_PROFILER_PORT", "9012")), Some(("TPU_RUNTIME_METRICS_PORTS", "9012"))]
        {
            environment.extend(extra.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let mut given = Given::new(vec![owner(10, &environment)], vec![listener("0.0.0.0:9012", 10)]);
            given.probe = true;
            let kind = EndpointKind::Profiler;
            given.configured = vec![StaticEndpoint { kind, address: "127.0.0.1:9012".parse().unwrap() }];
            assert_eq!(given.reachable(), [vec![]], "{environment:?}");
            assert!(given.plan().candidates.is_empty(), "{environment:?}");
        }
    }
    // Another owner's rendezvous is as private.
    let (none, master) = (Environment::new(), environment(&[("MASTER_PORT", "9012")]));
    let given = Given::new(vec![owner(10, &none), owner(20, &master)], vec![listener("0.0.0.0:9012", 10)]);
    assert_eq!(given.reachable(), [vec![], vec![]]);
}

#[test]
fn each_owner_gets_its_own_port_of_the_list() {
    let a = environment(&[
        ("TPU_RUNTIME_METRICS_PORTS", "8431,8432"),
        ("TPU_PROCESS_ADDRESSES", "localhost:8476,localhost:8477"),
        ("TPU_PROCESS_PORT", "8476"),
    ]);
    let mut b = a.clone();
    b.insert("TPU_PROCESS_PORT".into(), "8477".into());
    let given = Given::new(
        vec![owner(10, &a), owner(20, &b)],
        vec![listener("127.0.0.1:8431", 10), listener("127.0.0.1:8432", 20)],
    );
    assert_eq!(given.reachable(), [vec![metrics("127.0.0.1:8431")], vec![metrics("127.0.0.1:8432")]]);
    // B does not listen yet: its place says which port it will be, and A's is not shown twice.
    let given = Given::new(vec![owner(10, &a), owner(20, &b)], vec![listener("127.0.0.1:8431", 10)]);
    let endpoints = &given.plan().owners[1].endpoints;
    assert_eq!(endpoints.len(), 1);
    assert_eq!(endpoints[0].address.to_string(), "127.0.0.1:8432");
    assert_eq!(endpoints[0].unreachable.as_deref(), Some("nothing listens there"));
}

#[test]
fn an_unrelated_process_on_a_named_port_is_left_alone() {
    let named = environment(&[("TPUSCOPE_PROFILER_PORT", "7000")]);
    let given = Given::new(vec![owner(10, &named)], vec![listener("127.0.0.1:7000", 30)]);
    assert_eq!(given.reachable(), [vec![]]);
    assert!(
        given.plan().owners[0].endpoints[0]
            .unreachable
            .as_ref()
            .unwrap()
            .contains("process 30 listens there")
    );
    // Its own child is part of the workload.
    let given = Given::new(vec![owner(10, &named)], vec![listener("127.0.0.1:7000", 11)]);
    assert_eq!(given.reachable(), [vec![profiler("127.0.0.1:7000")]]);
    // An unrelated process that would answer on loopback in the owner's place.
    let both = vec![listener("127.0.0.1:7000", 30), listener("[::]:7000", 10)];
    let given = Given::new(vec![owner(10, &named)], both);
    assert_eq!(given.reachable(), [vec![]]);
    // One on another address would not.
    let both = vec![listener("10.0.0.5:7000", 30), listener("127.0.0.1:7000", 10)];
    let given = Given::new(vec![owner(10, &named)], both);
    assert_eq!(given.reachable(), [vec![profiler("127.0.0.1:7000")]]);
}

#[test]
fn processes_that_share_a_port_are_all_listed() {
    let none = Environment::new();
    let given = Given::new(
        vec![owner(10, &none), owner(20, &none)],
        vec![listener("[::]:9012", 10), listener("[::]:9012", 20)],
    );
    for OwnerPlan { endpoints, .. } in given.plan().owners {
        assert_eq!(
            (endpoints[0].listeners.clone(), endpoints[0].unreachable.clone()),
            (vec![key(10), key(20)], None)
        );
    }
}

#[test]
fn another_network_namespace_is_never_reached_over_our_loopback() {
    let named = environment(&[("TPU_RUNTIME_METRICS_PORTS", "8431"), ("TPUSCOPE_PROFILER_PORT", "7000")]);
    let there = OwnerInputs { namespace: Some(THEIRS), ..owner(10, &named) };
    let mut at = listener("127.0.0.1:8431", 10);
    at.namespace = THEIRS;
    let mut given = Given::new(vec![there.clone()], vec![at, listener("127.0.0.1:7000", 30)]);
    given.probe = true;
    let plan = given.plan();
    assert!(plan.candidates.is_empty());
    let endpoints = &plan.owners[0].endpoints;
    assert_eq!(endpoints.len(), 2);
    assert!(
        endpoints.iter().all(|at| at.unreachable.as_ref().is_some_and(|why| why.contains("hostNetwork")))
    );
    let unknown = OwnerInputs { namespace: None, ..there };
    let given = Given::new(vec![unknown], vec![listener("127.0.0.1:8431", 10)]);
    assert_eq!(given.reachable(), [vec![]]);
}

#[test]
fn eight_ports_listed_on_a_host_of_one_chip_are_one_service() {
    let ports = "8431,8432,8433,8434,8435,8436,8437,8438";
    for rank in [None, Some(("CLOUD_TPU_TASK_ID", "0"))] {
        let listed: Vec<_> = [("TPU_RUNTIME_METRICS_PORTS", ports)].into_iter().chain(rank).collect();
        let listed = environment(&listed);
        let given = Given::new(vec![owner(10, &listed)], vec![listener("127.0.0.1:8431", 10)]);
        let plan = given.plan();
        assert_eq!(given.reachable(), [vec![metrics("127.0.0.1:8431")]]);
        // The other seven are not there, and nobody misses them.
        assert_eq!(plan.owners[0].endpoints.len(), 1, "{plan:?}");
        assert_eq!((&plan.owners[0].no_metrics, &plan.owners[0].notes), (&None, &vec![]));
        let given = Given::new(vec![owner(10, &listed)], vec![]);
        let plan = &given.plan().owners[0];
        let why: Vec<_> = plan.endpoints.iter().filter_map(|at| at.unreachable.as_ref()).collect();
        assert!(
            why.len() == usize::from(rank.is_some()) && plan.no_metrics.is_some() == rank.is_none(),
            "{plan:?}"
        );
    }
}

#[test]
fn metrics_may_be_off_or_on_a_socket() {
    let off = environment(&[("TPU_RUNTIME_METRICS_PORTS", "")]);
    let given = Given::new(vec![owner(10, &off)], vec![listener("127.0.0.1:8431", 10)]);
    assert_eq!(given.reachable(), [vec![]]);
    assert!(given.plan().owners[0].no_metrics.as_ref().unwrap().contains("metric service is off"));
    let local = environment(&[("TPU_PROCESS_ADDRESSES", "local")]);
    let given = Given::new(vec![owner(10, &local)], vec![]);
    assert!(given.plan().owners[0].no_metrics.as_ref().unwrap().contains("`local`"));

    let named = environment(&[("TPU_RUNTIME_METRICS_ADDRESS", "unix:/run/tpu.sock")]);
    for (uid, open) in [(Some(1000), true), (Some(0), false), (None, false)] {
        let mut owner = owner(10, &named);
        owner.metrics_socket = Some(UnixSocket { path: "/run/tpu.sock".into(), owner: uid });
        let given = Given::new(vec![owner], vec![]);
        assert_eq!(!given.reachable()[0].is_empty(), open, "{uid:?}");
    }
}

#[test]
fn prometheus_needs_its_switch() {
    let mut named = environment(&[("ORBAX_PROMETHEUS_PORT", "9431")]);
    let listeners = vec![listener("0.0.0.0:9431", 10)];
    assert_eq!(Given::new(vec![owner(10, &named)], listeners.clone()).reachable(), [vec![]]);
    named.insert("ENABLE_ORBAX_PROMETHEUS_TELEMETRY".into(), "True".into());
    let want = (EndpointKind::OrbaxGrain, "127.0.0.1:9431".to_owned());
    assert_eq!(Given::new(vec![owner(10, &named)], listeners).reachable(), [vec![want]]);
}

#[test]
fn the_configuration_gives_an_address_to_its_owner() {
    let none = Environment::new();
    let kind = EndpointKind::Profiler;
    let mut given = Given::new(vec![owner(10, &none)], vec![listener("0.0.0.0:7000", 10)]);
    given.configured = ["127.0.0.1:7000", "127.0.0.1:7001", "192.0.2.7:9012"]
        .map(|address| StaticEndpoint { kind, address: address.parse().unwrap() })
        .into();
    let plan = given.plan();
    let addresses =
        |endpoints: &[Endpoint]| endpoints.iter().map(|at| at.address.to_string()).collect::<Vec<_>>();
    assert_eq!(addresses(&plan.owners[0].endpoints), ["127.0.0.1:7000"]);
    assert_eq!(plan.owners[0].endpoints[0].origin, EndpointOrigin::Config);
    assert_eq!(addresses(&plan.shared), ["127.0.0.1:7001", "192.0.2.7:9012"]);
}

#[test]
fn probing_is_opt_in_and_remembers() {
    let none = Environment::new();
    let mut given = Given::new(
        vec![owner(10, &none)],
        vec![listener("127.0.0.1:7000", 10), listener("127.0.0.1:8476", 10), listener("127.0.0.1:7001", 30)],
    );
    assert!(given.plan().candidates.is_empty());
    given.probe = true;
    let candidates = given.plan().candidates;
    assert_eq!(candidates.len(), 1);
    assert_eq!(candidates[0].address.port(), 7000);
    given.profilers.insert(candidates[0].inode);
    assert_eq!(given.reachable(), [vec![profiler("127.0.0.1:7000")]]);
    assert!(given.plan().candidates.is_empty());
    // The port that JAX derives from a Slurm job id is its coordinator's.
    let slurm = environment(&[("SLURM_JOB_ID", "12")]);
    let mut given = Given::new(vec![owner(10, &slurm)], vec![listener("0.0.0.0:61452", 10)]);
    given.probe = true;
    assert!(given.plan().candidates.is_empty());
}

#[test]
fn the_host_service_is_roots_or_named() {
    let none = Environment::new();
    let shared = |listener: PortListener, environment: &Environment| {
        let plan = Given::new(vec![owner(10, environment)], vec![listener]).plan();
        let open = plan.shared.into_iter().filter(|at| at.unreachable.is_none());
        (open.map(|at| at.address.to_string()).collect::<Vec<_>>(), plan.notes)
    };
    let root = |address: &str| PortListener { uid: 0, ..listener(address, 30) };
    assert_eq!(shared(root("127.0.0.1:8353"), &none).0, ["127.0.0.1:8353"]);
    assert!(shared(listener("127.0.0.1:8353", 30), &none).0.is_empty());
    let url = |url| environment(&[("VBAR_CONTROL_SERVICE_URL", url)]);
    let own = |address: &str| PortListener { uid: owner(10, &none).uid, ..listener(address, 30) };
    assert_eq!(shared(own("0.0.0.0:8400"), &url("10.0.0.5:8400")).0, ["10.0.0.5:8400"]);
    // Whoever names root's listener is not root, and cannot have it called.
    assert!(shared(root("0.0.0.0:8400"), &url("10.0.0.5:8400")).0.is_empty());
    // Nor can anybody silence the host's own service, or put another in its place.
    let two = vec![root("127.0.0.1:8353"), own("127.0.0.1:8400")];
    for told in ["127.0.0.1:8400", "127.0.0.1:1"] {
        let told = url(told);
        let plan = Given::new(vec![owner(10, &told)], two.clone()).plan();
        let addresses: Vec<_> = plan.shared.iter().map(|at| at.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:8353"]);
    }
    // And a process that holds no chip has no say.
    let told = url("127.0.0.1:8400");
    let onlooker = OwnerInputs { holds_chips: false, ..owner(10, &told) };
    assert!(Given::new(vec![onlooker], vec![own("127.0.0.1:8400")]).plan().shared.is_empty());
    let elsewhere = shared(root("0.0.0.0:80"), &url("169.254.169.254:80"));
    assert!(elsewhere.0.is_empty() && elsewhere.1[0].contains("not this host"), "{elsewhere:?}");
    let other_user = PortListener { uid: 7, ..listener("0.0.0.0:8400", 30) };
    assert!(shared(other_user, &url("localhost:8400")).0.is_empty());
}
