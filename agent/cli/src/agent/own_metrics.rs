//! The agent's own metrics: each crate describes and counts its own, one recorder keeps them for the metrics page.

use export::OwnMetrics;
use model::time::Timestamp;

/// The recorder of this process, with the metrics of every crate described.
pub(super) fn install(started: Timestamp) -> OwnMetrics {
    let own = OwnMetrics::default();
    own.install();
    describe();
    export::own_metrics::started(started);
    own
}

fn describe() {
    host::own_metrics::describe();
    sampling::own_metrics::describe();
    store::own_metrics::describe();
    ::marks::own_metrics::describe();
    ::sessions::own_metrics::describe();
    export::own_metrics::describe();
    server::own_metrics::describe();
}

#[cfg(test)]
mod tests {
    use model::metric::MetricKind;

    use super::*;

    #[test]
    fn the_docs_list_every_own_metric_with_its_kind_and_help() {
        let own = OwnMetrics::default();
        metrics::with_local_recorder(&own, describe);
        let docs = include_str!("../../../../docs/metrics.md");
        let mut listed: Vec<(String, MetricKind, String)> = docs
            .lines()
            .filter(|line| line.starts_with("| `tpuscope_"))
            .map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let kind = if cells[2] == "counter" { MetricKind::Counter } else { MetricKind::Gauge };
                (cells[1].trim_matches('`').to_owned(), kind, cells[5].to_owned())
            })
            .collect();
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(own.described(), listed);
    }
}
