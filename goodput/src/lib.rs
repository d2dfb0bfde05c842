//! The goodput ledgers as pure libraries.

#![forbid(unsafe_code)]
