//! `tpuscope goodput --from-slots`: the proxy of one host from what was observed there.

use std::path::Path;

use goodput::proxy::{self, Proxy, Trace};

use super::{json, print, read, show};
use crate::{CommandResult, exit::Exit, failure::Failure, output};

/// A file of observations may have so many bytes.
const BYTES: u64 = 64 << 20;

pub(super) fn run(file: &Path, json: bool) -> CommandResult {
    let text = read::small(file, BYTES)?;
    let trace: Trace = serde_json::from_slice(&text).map_err(|error| {
        let what = json::place_and_words(&error, &text);
        Failure::new(Exit::BadInput, format_args!("{} {what}", file.display())).remedy(
            "a JSON object with chips, now, opens, duty and, where known, hbm and steps; see docs/goodput.md",
        )
    })?;
    drop(text);
    let proxy = proxy::proxy(&trace).map_err(|error| {
        let (exit, remedy) = match error {
            proxy::Error::TooLong(_) | proxy::Error::TooMuch { .. } => {
                (Exit::TooLarge, "leave out what is older, or give fewer chips in one file")
            }
            proxy::Error::Nonsense(_) => (Exit::BadInput, "docs/goodput.md says what each field holds"),
        };
        Failure::new(exit, format_args!("{}: {error}", file.display())).remedy(remedy)
    })?;
    if json {
        return print(&proxy);
    }
    output::print(&text_of(&proxy))?;
    Ok(Exit::Ok)
}

#[allow(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
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
    let rows: Vec<show::Row> =
        rows.into_iter().map(|(name, seconds)| show::Row::new(name, seconds as f64)).collect();
    out.push_str(&show::bars(rows, total));
    match proxy.wasted_s {
        Some(wasted) => {
            out.push_str(&format!("steps done again: {}\n", show::duration(wasted as f64)));
        }
        None => out.push_str("steps done again: unknown without step numbers\n"),
    }
    if let Some(estimated) = &proxy.estimated {
        let percent = estimated.estimated_goodput * 100.0;
        out.push_str(&format!("from step starts, by the library's rules: {percent:.1} %\n"));
    }
    out
}
