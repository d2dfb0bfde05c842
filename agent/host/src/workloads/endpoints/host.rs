//! Endpoints beyond the owners' own: the host's VBARControl service, and what the configuration names.

use std::net::{IpAddr, SocketAddr};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin};

use super::{Listener, Plan, Planner, Subject, belongs_to, contact, covers, principal};

/// The host service's default.
pub(in crate::workloads) const HOST_SERVICE: u16 = 8353;
const HOST_SERVICE_URL: &str = "VBAR_CONTROL_SERVICE_URL";

/// Adds them to the plan.
pub(super) fn add(planner: &Planner<'_>, plan: &mut Plan) {
    for known in planner.scene.statics {
        add_static(planner, plan, known.kind, &known.address);
    }
    if plan.shared.iter().any(|endpoint| endpoint.kind == EndpointKind::HostService) {
        return;
    }
    if let Some(endpoint) = host_service_default(planner) {
        plan.shared.push(endpoint);
        return;
    }
    // A variable is a user's word: it is heard only from who holds chips, and where the default has no service.
    for subject in planner.scene.subjects.iter().filter(|subject| subject.holds_chips) {
        if let Some(url) = subject.environment.get(HOST_SERVICE_URL).filter(|url| !url.is_empty()) {
            match host_service_named(planner, subject, url) {
                Ok(endpoint) if !plan.shared.contains(&endpoint) => plan.shared.push(endpoint),
                Ok(_) => {}
                Err(why) => note(
                    plan,
                    format!("{HOST_SERVICE_URL} of process {} is not used: {why}", subject.process.pid),
                ),
            }
        }
    }
}

fn note(plan: &mut Plan, text: String) {
    if !plan.notes.contains(&text) {
        plan.notes.push(text);
    }
}

/// An address of the configuration: given to the owner that listens there, else to nobody.
fn add_static(planner: &Planner<'_>, plan: &mut Plan, kind: EndpointKind, address: &Address) {
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
        let answering: Vec<&Listener> = answering(planner, contact(*at)).collect();
        endpoint.listeners =
            answering.iter().filter_map(|at| principal(at)).map(|holder| holder.process).collect();
        endpoint.unreachable = planner.forbidden.why(planner.scene.our_namespace, at.port());
        let listens = |subject: &Subject<'_>| answering.iter().any(|at| belongs_to(at, subject.process));
        owner = planner.scene.subjects.iter().position(listens);
    }
    let list = match owner {
        Some(at) if kind != EndpointKind::HostService => &mut plan.subjects[at].0,
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
fn answering<'a>(planner: &Planner<'a>, address: SocketAddr) -> impl Iterator<Item = &'a Listener> {
    planner.on_port(planner.scene.our_namespace, address.port()).filter(move |at| covers(at.address, address))
}

fn is_this_host(planner: &Planner<'_>, ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || planner.scene.local_addresses.contains(&ip)
}

/// The host service where an owner's variable puts it. The variable is the user's word: it can lead neither off
/// this host nor to a listener of a third party.
fn host_service_named(planner: &Planner<'_>, subject: &Subject<'_>, url: &str) -> Result<Endpoint, String> {
    let shown: String = url.chars().take(200).collect();
    let text = url.strip_prefix("http://").unwrap_or(url);
    let address: Address = text
        .parse()
        .map_err(|_| format!("`{shown}` is no numeric address; name it in workload.endpoints"))?;
    let Address::Tcp(at) = address else {
        return Err(format!("`{shown}` is a Unix socket; name it in workload.endpoints to have it used"));
    };
    if let Some(why) = planner.elsewhere(subject.namespace).filter(|_| at.ip().is_loopback()) {
        return Err(why);
    }
    if !is_this_host(planner, at.ip()) {
        return Err(format!("{at} is not this host; name it in workload.endpoints to have it used"));
    }
    let at = contact(at);
    if let Some(why) = planner.forbidden.why(planner.scene.our_namespace, at.port()) {
        return Err(why);
    }
    let answering: Vec<&Listener> = answering(planner, at).collect();
    let stranger = answering.iter().find(|listener| listener.uid != subject.uid);
    let unreachable = match stranger {
        Some(listener) => Some(format!("user {} listens on {at}: it is not contacted", listener.uid)),
        None if answering.is_empty() => Some("nothing listens there".to_owned()),
        None => None,
    };
    Ok(Endpoint {
        kind: EndpointKind::HostService,
        address: Address::Tcp(at),
        origin: EndpointOrigin::Variable(HOST_SERVICE_URL.to_owned()),
        listeners: answering.iter().filter_map(|at| principal(at)).map(|holder| holder.process).collect(),
        unreachable,
    })
}

/// The host service on its default port: only on a host with chips, where root and no workload listens there.
fn host_service_default(planner: &Planner<'_>) -> Option<Endpoint> {
    let at = SocketAddr::from(([127, 0, 0, 1], HOST_SERVICE));
    let answering: Vec<&Listener> = answering(planner, at).collect();
    let of_the_host = |listener: &&Listener| {
        listener.uid == 0 && principal(listener).is_none_or(|holder| holder.owner.is_none())
    };
    let private = planner.forbidden.why(planner.scene.our_namespace, HOST_SERVICE).is_some();
    if !planner.scene.chips || private || answering.is_empty() || !answering.iter().all(of_the_host) {
        return None;
    }
    Some(Endpoint {
        kind: EndpointKind::HostService,
        address: Address::Tcp(at),
        origin: EndpointOrigin::KnownDefault,
        listeners: answering.iter().filter_map(|at| principal(at)).map(|holder| holder.process).collect(),
        unreachable: None,
    })
}
