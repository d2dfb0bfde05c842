//! The goodput ledgers as pure libraries: what share of a job's time was progress, and where the rest went.
//!
//! Three ledgers, never mixed silently: [`exact`] gives the numbers of ml-goodput-measurement, faults
//! included; [`strict`] answers the same questions without those faults and names each repair; [`proxy`]
//! estimates from duty cycles where no recorder writes events. Nothing here reads files, clocks or the
//! network: entries, the time of asking and per-second states come in as values.

#![forbid(unsafe_code)]

pub mod answer;
pub mod badput;
pub mod entry;
pub mod error;
pub mod exact;
pub mod export;
pub mod log;
pub mod proxy;
pub mod query;
pub mod strict;
pub mod time;
