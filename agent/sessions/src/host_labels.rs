//! What the hosts of a session are called in it: as their agents call them. Where two agents have one name for their hosts
//! (images with a fixed host name), the second one is called as it was given.

use std::collections::BTreeSet;

use cluster::hosts::HostAddress;
use xprof::session::HostName;

/// A name for each host, none twice, in their order.
pub fn allot<'a>(hosts: impl Iterator<Item = (&'a HostAddress, &'a HostName)>) -> Vec<HostName> {
    let mut taken: BTreeSet<HostName> = BTreeSet::new();
    let label = |(given, own): (&HostAddress, &HostName)| {
        let given = given.to_string();
        let numbered = (2_u64..).map(|number| HostName::sanitised(&format!("{number}.{given}")));
        let mut names = [own.clone(), HostName::sanitised(&given)].into_iter().chain(numbered);
        let free = names.find(|name| !taken.contains(name)).unwrap_or_else(|| own.clone());
        taken.insert(free.clone());
        free
    };
    hosts.map(label).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allotted(hosts: &[(&str, &str)]) -> Vec<String> {
        let hosts: Vec<(HostAddress, HostName)> =
            hosts.iter().map(|(given, own)| (given.parse().unwrap(), own.parse().unwrap())).collect();
        allot(hosts.iter().map(|(given, own)| (given, own))).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_second_host_of_one_name_is_called_as_it_was_given() {
        assert_eq!(allotted(&[("a", "vm-1"), ("b", "vm-2")]), ["vm-1", "vm-2"]);
        assert_eq!(allotted(&[("a", "vm"), ("me@b:22", "vm"), ("c", "vm")]), ["vm", "me_b_22", "c"]);
        assert_eq!(allotted(&[("x", "b"), ("y", "b"), ("b", "b"), ("z", "y")]), ["b", "y", "2.b", "z"]);
    }

    proptest! {
        #[test]
        fn no_two_hosts_have_one_name(hosts in prop::collection::vec(("@?[a-c]{1,2}", "[a-c]{1,2}"), 0..20)) {
            let hosts: Vec<(&str, &str)> = hosts.iter().map(|(given, own)| (given.as_str(), own.as_str())).collect();
            let labels = allotted(&hosts);
            prop_assert_eq!(labels.len(), hosts.len());
            prop_assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), hosts.len());
        }
    }
}
