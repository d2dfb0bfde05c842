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
    let ratio = match proxy.proxy_runtime_goodput {
        Some(share) => format!("{:.1} %", share * 100.0),
        None => "unknown".into(),
    };
    let mut out = format!(
        "proxy goodput {ratio} over {}, {:.0} % of it known\n",
        show::duration(total),
        proxy.coverage * 100.0
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
