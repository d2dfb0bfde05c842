//! `tpuscope goodput --from-slots`: the proxy ledger of one host.

use std::path::Path;

use goodput::proxy::{self, HostObservations, Proxy};

use super::{json, read, show};
use crate::{CommandResult, exit::Exit, output, remedies};

/// The maximum size of a file of observations in bytes.
const BYTES: u64 = 64 << 20;

pub(super) fn run(file: &Path, json: bool) -> CommandResult {
    let text = read::small("--from-slots", file, BYTES)?;
    let observed: HostObservations = serde_json::from_slice(&text)
        .map_err(|error| remedies::bad_observations(file, json::message_with_line(&error, &text)))?;
    drop(text);
    let proxy = proxy::proxy(&observed).map_err(|error| remedies::refused_observations(file, &error))?;
    if json {
        output::json(&proxy)?;
        return Ok(Exit::Ok);
    }
    output::print(&text_of(&proxy))?;
    Ok(Exit::Ok)
}

#[expect(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
fn text_of(proxy: &Proxy) -> String {
    let total = proxy.elapsed_s as f64;
    let known = show::duration((proxy.elapsed_s - proxy.buckets.unknown) as f64);
    let ratio = match proxy.proxy_runtime_goodput {
        Some(share) => format!("{:.1} % of the {known} that are known", share * 100.0),
        None => format!("unknown: {known} are known"),
    };
    let mut out = format!(
        "proxy goodput {ratio} ({:.1} % of {})\nshares of all {}:\n",
        proxy.coverage * 100.0,
        show::duration(total),
        show::duration(total)
    );
    let buckets = proxy.buckets;
    let rows = [
        ("productive", buckets.productive),
        ("init", buckets.init),
        ("prep", buckets.prep),
        ("stall", buckets.stall),
        ("partial", buckets.partial),
        ("recovery", buckets.recovery),
        ("unknown", buckets.unknown),
    ];
    let rows: Vec<show::BarRow> =
        rows.into_iter().map(|(name, seconds)| show::BarRow::new(name, seconds as f64)).collect();
    out.push_str(&show::bars(rows, total));
    match proxy.wasted_s {
        Some(wasted) => {
            out.push_str(&format!("repeated steps: {}\n", show::duration(wasted as f64)));
        }
        None => out.push_str("repeated steps: unknown without step numbers\n"),
    }
    if let Some(estimated) = &proxy.estimated {
        let percent = estimated.estimated_goodput * 100.0;
        out.push_str(&format!("goodput from step starts, by the library's rules: {percent:.1} %\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_share_says_of_what_it_is_one() {
        // 100 s of one chip: 50 s productive, 40 s idle, and 10 s without a sample, of which the last one holds 5.
        let duty: Vec<Option<f64>> = [vec![Some(90.0); 50], vec![Some(0.0); 40], vec![None; 10]].concat();
        let observed = serde_json::json!({
            "chips": [0], "now": 100.0, "opens": [[0, 7, 0.0, null]], "duty": [[0, 0, duty]],
        });
        let observed: HostObservations = serde_json::from_value(observed).unwrap();
        let text = text_of(&proxy::proxy(&observed).unwrap());
        let wanted =
            "proxy goodput 52.6 % of the 1m 35s that are known (95.0 % of 1m 40s)\nshares of all 1m 40s:\n";
        assert!(text.starts_with(wanted), "{text}");
        let rows: Vec<_> = text
            .lines()
            .skip(2)
            .map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows[..3], ["productive 50.0 %", "stall 45.0 %", "unknown 5.0 %"], "{text}");
    }
}
