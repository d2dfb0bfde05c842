//! Hosts with a network of their own each, connected by a bridge as by a switch, with one more network from which they are
//! reached. Nothing of it is seen outside of these namespaces, and all of it is gone when dropped.

use std::net::Ipv4Addr;

use crate::net_ns::NetNs;

/// The networks.
#[derive(Debug)]
pub struct BridgedNetworks {
    outside: NetNs,
    hosts: Vec<NetNs>,
}

impl BridgedNetworks {
    /// Connects so many hosts.
    ///
    /// # Panics
    /// If this user may not, or the kernel has no bridges.
    pub fn new(hosts: u8) -> Self {
        let outside = NetNs::new();
        outside.ip("link add bridge type bridge");
        outside.ip("address add 10.77.0.254/24 dev bridge");
        outside.ip("link set bridge up");
        let connect = |number| {
            let host = NetNs::new();
            let port = port(number);
            outside.link(&port, host.keeper());
            outside.ip(&format!("link set {port} master bridge up"));
            host.ip(&format!("address add {}/24 dev eth0", Self::address(number)));
            host.ip("link set eth0 up");
            host
        };
        let hosts = (0..hosts).map(connect).collect();
        Self { outside, hosts }
    }

    /// The network from which the hosts are reached.
    pub fn outside(&self) -> &NetNs {
        &self.outside
    }

    /// The network of a host.
    pub fn host(&self, number: u8) -> &NetNs {
        &self.hosts[usize::from(number)]
    }

    /// The address of a host.
    pub fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, number + 1)
    }

    /// Cuts the link of a host: neither side is told that its packets are lost.
    pub fn cut(&self, number: u8) {
        self.outside.ip(&format!("link set {} down", port(number)));
    }

    /// Connects it again.
    pub fn mend(&self, number: u8) {
        self.outside.ip(&format!("link set {} up", port(number)));
    }
}

fn port(number: u8) -> String {
    format!("port{number}")
}
