//! The daemon: how it starts and stops, whom it serves, and what scrapers see.

mod access;
mod chips;
mod http;
mod hung_settings;
mod life;
mod log;
pub(crate) mod metrics_listener;
mod own_metrics;
pub(crate) mod scrape;
mod series;
mod status;
