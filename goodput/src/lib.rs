//! The goodput ledgers as pure libraries: the share of a job's time that was progress, and the causes of lost time.
//!
//! There are three ledgers, and an answer comes from one of them: [`exact`] gives the numbers of
//! ml-goodput-measurement including its faults; [`strict`] answers the same queries without those faults and names
//! each repair; [`proxy`] estimates goodput from duty cycles if no recorder writes events. This crate never reads
//! files, clocks or the network: entries, the time of the query and observations are arguments.

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
pub mod splitter;
pub mod strict;
pub mod time;
