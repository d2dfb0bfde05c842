//! Chips and processes that `status` does not find.

use crate::{exit::Exit, failure::Failure};

/// The agent knows no process `pid` that uses a chip.
pub(crate) fn no_owner(pid: u32) -> Failure {
    Failure::new(Exit::NotFound, format!("no chip of this host is known to be used by process {pid}"))
        .remedy("`tpuscope status` lists the processes that use chips")
}

/// There is no chip `index`, or `user` does not use it. `known` are the chips that can be asked for.
pub(crate) fn no_chip(index: u32, user: Option<u32>, known: &[u32]) -> Failure {
    let by_user = user.map_or_else(String::new, |pid| format!(" that process {pid} uses"));
    let failure = Failure::new(Exit::NotFound, format!("there is no chip {index}{by_user}"));
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    match (&known[..], user) {
        ([], _) => failure.remedy("this host shows no TPU chips; `tpuscope status` shows what is known"),
        (known, Some(pid)) => failure.remedy(format_args!("process {pid} uses chip {}", known.join(", "))),
        (known, None) => failure.remedy(format_args!("this host has chip {}", known.join(", "))),
    }
}
