//! Endpoints beyond the owners' own: the host's VBARControl service, and the addresses in the settings.

use std::net::{IpAddr, SocketAddr};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin};

use super::{EndpointPlan, EndpointPlanner, OwnerInputs, PortListener, belongs_to, contact, covers, opener};

/// The host service's default.
pub(in crate::workloads) const HOST_SERVICE: u16 = 8353;
const HOST_SERVICE_URL: &str = "VBAR_CONTROL_SERVICE_URL";

/// Adds them to the plan.
pub(super) fn add(planner: &EndpointPlanner<'_>, plan: &mut EndpointPlan) {
    for known in planner.inputs.configured {
        add_configured(planner, plan, known.kind, &known.address);
    }
    if plan.shared.iter().any(|endpoint| endpoint.kind == EndpointKind::HostService) {
        return;
    }
    if let Some(endpoint) = host_service_default(planner) {
        plan.shared.push(endpoint);
        return;
    }
    // Any user can set a variable: only those of chip owners count, and only where the default has no service.
    for owner in planner.inputs.owners.iter().filter(|owner| owner.holds_chips) {
        if let Some(url) = owner.environment.get(HOST_SERVICE_URL).filter(|url| !url.is_empty()) {
            match host_service_named(planner, owner, url) {
                Ok(endpoint) if !plan.shared.contains(&endpoint) => plan.shared.push(endpoint),
                Ok(_) => {}
                Err(why) => note(
                    plan,
                    format!("{HOST_SERVICE_URL} of process {} is not used: {why}", owner.process.pid),
                ),
            }
        }
    }
}

fn note(plan: &mut EndpointPlan, text: String) {
    if !plan.notes.contains(&text) {
        plan.notes.push(text);
    }
}

/// An address from the settings: it belongs to the owner that listens there, else to no owner.
fn add_configured(
    planner: &EndpointPlanner<'_>,
    plan: &mut EndpointPlan,
    kind: EndpointKind,
    address: &Address,
) {
    let mut endpoint = Endpoint {
        kind,
        address: address.clone(),
        origin: EndpointOrigin::Config,
        listeners: Vec::new(),
        unreachable: None,
    };
    let mut owner = None;
    if let Address::Tcp(at) = address
        && is_this_host(planner, at.ip())
    {
        let answering: Vec<&PortListener> = answering(planner, contact(*at)).collect();
        endpoint.listeners =
            answering.iter().filter_map(|at| opener(at)).map(|opener| opener.process).collect();
        endpoint.unreachable = planner.private_ports.reason(planner.inputs.our_namespace, at.port());
        let listens = |owner: &OwnerInputs<'_>| answering.iter().any(|at| belongs_to(at, owner.process));
        owner = planner.inputs.owners.iter().position(listens);
    }
    let list = match owner {
        Some(at) if kind != EndpointKind::HostService => &mut plan.owners[at].endpoints,
        _ => &mut plan.shared,
    };
    if !list
        .iter()
        .any(|known| (known.kind, &known.address) == (kind, address) && known.unreachable.is_none())
    {
        list.retain(|known| (known.kind, &known.address) != (kind, address));
        list.push(endpoint);
    }
}

/// The listeners in our namespace that would answer a call to `address`.
fn answering<'a>(
    planner: &EndpointPlanner<'a>,
    address: SocketAddr,
) -> impl Iterator<Item = &'a PortListener> {
    planner
        .on_port(planner.inputs.our_namespace, address.port())
        .filter(move |at| covers(at.address, address))
}

fn is_this_host(planner: &EndpointPlanner<'_>, ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || planner.inputs.local_addresses.contains(&ip)
}

/// The host service at the address in an owner's variable. Any user can set a variable: it is refused when it leads
/// off this host or to a listener of another user.
fn host_service_named(
    planner: &EndpointPlanner<'_>,
    owner: &OwnerInputs<'_>,
    url: &str,
) -> Result<Endpoint, String> {
    let shown: String = url.chars().take(200).collect();
    let text = url.strip_prefix("http://").unwrap_or(url);
    let address: Address = text
        .parse()
        .map_err(|_| format!("expected IP:PORT, got `{shown}`; add the address to workload.endpoints"))?;
    let Address::Tcp(at) = address else {
        return Err(format!("expected IP:PORT, got the Unix socket `{shown}`; add it to workload.endpoints"));
    };
    if let Some(why) = planner.other_namespace(owner.namespace).filter(|_| at.ip().is_loopback()) {
        return Err(why);
    }
    if !is_this_host(planner, at.ip()) {
        return Err(format!("{at} is not this host; add it to workload.endpoints"));
    }
    let at = contact(at);
    if let Some(why) = planner.private_ports.reason(planner.inputs.our_namespace, at.port()) {
        return Err(why);
    }
    let answering: Vec<&PortListener> = answering(planner, at).collect();
    let other = answering.iter().find(|listener| listener.uid != owner.uid);
    let unreachable = match other {
        Some(listener) => Some(format!("user {} listens on {at}: it is not contacted", listener.uid)),
        None if answering.is_empty() => Some("nothing listens there".to_owned()),
        None => None,
    };
    Ok(Endpoint {
        kind: EndpointKind::HostService,
        address: Address::Tcp(at),
        origin: EndpointOrigin::Variable(HOST_SERVICE_URL.to_owned()),
        listeners: answering.iter().filter_map(|at| opener(at)).map(|opener| opener.process).collect(),
        unreachable,
    })
}

/// The host service on its default port: only on a host with chips, where root listens there and no workload does.
fn host_service_default(planner: &EndpointPlanner<'_>) -> Option<Endpoint> {
    let at = SocketAddr::from(([127, 0, 0, 1], HOST_SERVICE));
    let answering: Vec<&PortListener> = answering(planner, at).collect();
    let of_the_host = |listener: &&PortListener| {
        listener.uid == 0 && opener(listener).is_none_or(|opener| opener.owner.is_none())
    };
    let private = planner.private_ports.reason(planner.inputs.our_namespace, HOST_SERVICE).is_some();
    if !planner.inputs.chips || private || answering.is_empty() || !answering.iter().all(of_the_host) {
        return None;
    }
    Some(Endpoint {
        kind: EndpointKind::HostService,
        address: Address::Tcp(at),
        origin: EndpointOrigin::KnownDefault,
        listeners: answering.iter().filter_map(|at| opener(at)).map(|opener| opener.process).collect(),
        unreachable: None,
    })
}
