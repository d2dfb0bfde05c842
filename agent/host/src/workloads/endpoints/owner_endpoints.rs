//! Endpoints of an owner: the addresses that its variables name, and known defaults on which it listens.

use std::net::{Ipv4Addr, SocketAddr};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin};

use super::{
    super::environment::{PROFILER_PORT, is_true, ports_in},
    EndpointPlanner, OwnerInputs, OwnerPlan, PortListener, belongs_to, opener,
};

const METRICS_PORTS: &str = "TPU_RUNTIME_METRICS_PORTS";
const METRICS_ADDRESS: &str = "TPU_RUNTIME_METRICS_ADDRESS";
/// libtpu's default.
const METRICS_DEFAULT: u16 = 8431;
/// Variables that name a profiler's port: ours, and those of common launchers.
pub const PROFILER_VARIABLES: &[&str] = &[PROFILER_PORT, "JAX_PROFILER_PORT", "JAX_PROFILER_SERVER_PORT"];
/// The ports on which tutorials and launchers start the profiler.
pub const PROFILER_DEFAULTS: &[u16] = &[9999, 9012, 6009];
/// Switch and port of each Prometheus endpoint.
const PROMETHEUS: &[(&str, &str)] = &[
    ("ENABLE_ORBAX_PROMETHEUS_TELEMETRY", "ORBAX_PROMETHEUS_PORT"),
    ("ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY", "PYGRAIN_PROMETHEUS_PORT"),
];
const PROMETHEUS_DEFAULT: u16 = 9431;
/// More ports in one variable are not looked at.
const MAX_PORTS: usize = 64;

/// The endpoints of an owner, and notes about those that are missing.
pub(super) fn endpoints(planner: &EndpointPlanner<'_>, owner: &OwnerInputs<'_>) -> OwnerPlan {
    let mut found =
        OwnerEndpoints { planner, owner, endpoints: Vec::new(), no_metrics: None, notes: Vec::new() };
    found.metrics();
    found.profiler();
    found.prometheus();
    let OwnerEndpoints { endpoints, no_metrics, mut notes, .. } = found;
    notes.extend(no_metrics.clone());
    OwnerPlan { endpoints, no_metrics, notes }
}

struct OwnerEndpoints<'a> {
    planner: &'a EndpointPlanner<'a>,
    owner: &'a OwnerInputs<'a>,
    endpoints: Vec<Endpoint>,
    no_metrics: Option<String>,
    notes: Vec<String>,
}

/// What listens on a named port.
enum PortState<'a> {
    /// The owner or one of its children.
    Owner(&'a PortListener),
    /// Another owner: the variable lists the ports of all processes of the host.
    Sibling,
    /// A process that is no part of a workload.
    Unrelated(&'a PortListener),
    Free,
}

impl<'a> OwnerEndpoints<'a> {
    fn metrics(&mut self) {
        let kind = EndpointKind::RuntimeMetrics;
        if let Some(address) = self.variable(METRICS_ADDRESS) {
            return self.metrics_address(address);
        }
        match self.variable(METRICS_PORTS) {
            Some("") => {
                self.no_metrics = Some(format!("its metric service is off: {METRICS_PORTS} is empty"));
            }
            Some(list) => {
                let ports: Vec<u16> = ports_in_order(list);
                let own =
                    self.position().or((ports.len() == 1).then_some(0)).and_then(|at| ports.get(at).copied());
                let before = self.endpoints.len();
                for port in &ports {
                    self.named(kind, METRICS_PORTS, *port, Some(*port) == own);
                }
                if self.endpoints.len() == before && self.owner.holds_chips {
                    self.no_metrics =
                        Some(format!("{METRICS_PORTS} names {list}, but it listens on none of them"));
                }
            }
            None => {
                let before = self.endpoints.len();
                self.default(kind, METRICS_DEFAULT);
                if self.endpoints.len() == before && self.owner.holds_chips {
                    self.no_metrics = Some(self.why_no_metrics());
                }
            }
        }
    }

    fn why_no_metrics(&self) -> String {
        if self.variable("TPU_PROCESS_ADDRESSES") == Some("local") {
            return "libtpu starts no metric service when TPU_PROCESS_ADDRESSES is `local`".to_owned();
        }
        format!(
            "it has no metric service: it does not listen on {METRICS_DEFAULT}, and {METRICS_PORTS} is not set \
             (libtpu starts the service when the TPU is initialised)"
        )
    }

    fn metrics_address(&mut self, address: &str) {
        let Some(socket) = &self.owner.metrics_socket else {
            for port in ports_in_order(address) {
                self.named(EndpointKind::RuntimeMetrics, METRICS_ADDRESS, port, true);
            }
            return;
        };
        let at = socket.path.display();
        let unreachable = match socket.owner {
            Some(uid) if uid == self.owner.uid => None,
            Some(uid) => {
                Some(format!("{at} belongs to user {uid}, not to the workload's user: it is not contacted"))
            }
            None => Some(format!("{at} is not a socket, or cannot be read")),
        };
        self.endpoints.push(Endpoint {
            kind: EndpointKind::RuntimeMetrics,
            address: Address::Unix(socket.path.clone()),
            origin: EndpointOrigin::Variable(METRICS_ADDRESS.to_owned()),
            listeners: vec![self.owner.process],
            unreachable,
        });
    }

    fn profiler(&mut self) {
        let before = self.endpoints.len();
        for name in PROFILER_VARIABLES {
            for port in self.variable(name).map(ports_in_order).unwrap_or_default() {
                self.named(EndpointKind::Profiler, name, port, true);
            }
        }
        if self.endpoints[before..].iter().any(|endpoint| endpoint.unreachable.is_none()) {
            return;
        }
        for port in PROFILER_DEFAULTS {
            self.default(EndpointKind::Profiler, *port);
        }
    }

    fn prometheus(&mut self) {
        for (switch, name) in PROMETHEUS {
            if !is_true(self.owner.environment, switch) {
                continue;
            }
            match self.variable(name) {
                Some(list) => {
                    for port in ports_in_order(list) {
                        self.named(EndpointKind::OrbaxGrain, name, port, true);
                    }
                }
                None => self.default(EndpointKind::OrbaxGrain, PROMETHEUS_DEFAULT),
            }
        }
    }

    /// A port that a variable names. If nothing listens there yet, `own` ports are shown as unreachable.
    fn named(&mut self, kind: EndpointKind, name: &str, port: u16, own: bool) {
        if let Some(why) = self.planner.private_ports.reason(self.owner.namespace, port) {
            self.notes.push(format!("{name} names {port}, but {why}"));
            return;
        }
        let origin = EndpointOrigin::Variable(name.to_owned());
        let unreachable = match self.listening(port) {
            PortState::Owner(at) => {
                let endpoint = self.planner.at_listener(kind, origin, self.owner, at);
                return self.add(endpoint);
            }
            PortState::Sibling => return,
            PortState::Unrelated(_) | PortState::Free if !own => return,
            PortState::Unrelated(at) => match opener(at) {
                Some(opener) => format!(
                    "process {} listens there, which holds no chip and is not a child of this one: it is not contacted",
                    opener.process.pid
                ),
                None => format!(
                    "a process of user {} that cannot be read listens there: it is not contacted",
                    at.uid
                ),
            },
            PortState::Free => "nothing listens there".to_owned(),
        };
        let unreachable = self.planner.other_namespace(self.owner.namespace).unwrap_or(unreachable);
        let address = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        self.add(Endpoint { kind, address, origin, listeners: Vec::new(), unreachable: Some(unreachable) });
    }

    /// A known default: only where the owner itself listens.
    fn default(&mut self, kind: EndpointKind, port: u16) {
        if self.planner.private_ports.reason(self.owner.namespace, port).is_some() {
            return;
        }
        let own = |at: &&PortListener| belongs_to(at, self.owner.process);
        let Some(at) = self.planner.on_port(self.owner.namespace, port).find(own) else { return };
        let endpoint = self.planner.at_listener(kind, EndpointOrigin::KnownDefault, self.owner, at);
        if !self.endpoints.iter().any(|known| known.address == endpoint.address) {
            self.add(endpoint);
        }
    }

    fn listening(&self, port: u16) -> PortState<'a> {
        let mut best = PortState::Free;
        for listener in self.planner.on_port(self.owner.namespace, port) {
            let owner = opener(listener).and_then(|opener| opener.owner);
            match (owner, &best) {
                (Some(owner), _) if owner == self.owner.process => return PortState::Owner(listener),
                (Some(_), _) => best = PortState::Sibling,
                (None, PortState::Free) => best = PortState::Unrelated(listener),
                (None, _) => {}
            }
        }
        best
    }

    fn add(&mut self, endpoint: Endpoint) {
        let same = |known: &Endpoint| (known.kind, &known.address) == (endpoint.kind, &endpoint.address);
        if !self.endpoints.iter().any(same) {
            self.endpoints.push(endpoint);
        }
    }

    /// The index of the process among the processes of its job on this host.
    fn position(&self) -> Option<usize> {
        let port = self.variable("TPU_PROCESS_PORT").and_then(|port| port.parse::<u16>().ok());
        let addresses = ports_in_order(self.variable("TPU_PROCESS_ADDRESSES").unwrap_or_default());
        let by_port = port.and_then(|port| addresses.iter().position(|other| *other == port));
        by_port.or_else(|| self.variable("CLOUD_TPU_TASK_ID")?.parse().ok())
    }

    fn variable(&self, name: &str) -> Option<&'a str> {
        self.owner.environment.get(name).map(|value| value.trim())
    }
}

/// The ports of a comma-separated list of ports or addresses, in its order.
fn ports_in_order(list: &str) -> Vec<u16> {
    list.split(',').filter_map(|item| ports_in(item).into_iter().next()).take(MAX_PORTS).collect()
}
