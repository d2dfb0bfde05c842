//! Series that the agent does not have.

use std::collections::BTreeSet;

use model::suggestion::nearest;

use crate::{exit::Exit, failure::Failure};

/// No metric's name contains the pattern. `names` are those of the agent.
pub(crate) fn no_metric_contains(pattern: &str, names: &BTreeSet<&str>) -> Failure {
    let what = format!("no metric's name contains `{pattern}`");
    Failure::new(Exit::NotFound, what).remedy(similar(pattern, names))
}

/// The agent has no values of the metric.
pub(crate) fn no_history(metric: &str, chip: Option<u32>, names: &BTreeSet<&str>) -> Failure {
    let of_chip = chip.map_or_else(String::new, |chip| format!(" of chip {chip}"));
    let failure = Failure::new(Exit::NotFound, format!("the agent has no values of `{metric}`{of_chip}"));
    if names.contains(metric) {
        return failure
            .remedy(format_args!("`tpuscope metrics {metric}` lists its series; a longer --last may help"));
    }
    failure.remedy(similar(metric, names))
}

fn similar(name: &str, names: &BTreeSet<&str>) -> String {
    let all = "`tpuscope metrics` lists all metrics of this host";
    match nearest(name, names.iter().copied()) {
        Some(nearest) => format!("did you mean `{nearest}`? {all}"),
        None if names.is_empty() => {
            "the agent has no samples yet; `tpuscope status` shows the reasons".into()
        }
        None => all.into(),
    }
}
