//! `tpuscope metrics` and `tpuscope history`: the latest values and the past values of the agent's series.

pub(crate) mod history;
pub(crate) mod metrics;

use std::collections::{BTreeMap, BTreeSet};

use proto::tpuscope::v1::{SamplesReply, SamplesRequest, host_client::HostClient};
use server::protocol;
use tonic::transport::Channel;

use super::{client, failure::Failure};

/// Asks for the latest value of every series.
async fn samples(host: &mut HostClient<Channel>) -> Result<SamplesReply, Failure> {
    let request = SamplesRequest { peer: Some(protocol::own()), metrics: Vec::new() };
    Ok(client::within(client::CALL_TIMEOUT, host.samples(request)).await?.into_inner())
}

/// The names of the metrics that the agent has at the moment.
fn names(samples: &SamplesReply) -> BTreeSet<&str> {
    samples.samples.iter().map(|series| series.metric.as_str()).collect()
}

/// Labels as on the metrics page.
fn labels(labels: &BTreeMap<String, String>) -> String {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    labels.join(",")
}

/// A number: whole ones with all digits, others with six significant ones.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10")]
fn number(value: f64) -> String {
    /// The largest number up to which every whole number is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value == 0.0 {
        return "0".into();
    }
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return format!("{value:.0}");
    }
    let magnitude = value.abs().log10().floor();
    if !(-5.0..15.0).contains(&magnitude) {
        return format!("{value:.5e}");
    }
    let digits = (5.0 - magnitude).max(0.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_whole_ones_exact() {
        for (value, text) in [
            (0.0, "0"),
            (34_359_738_368.0, "34359738368"),
            (-2.0, "-2"),
            (0.123_456_789, "0.123457"),
            (0.5, "0.5"),
            (1234.5678, "1234.57"),
            (0.000_012_345_678, "0.0000123457"),
            (1.5e-9, "1.50000e-9"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
