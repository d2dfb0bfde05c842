//! Promises: a measured value and its limit. The values are ratios to a peer of the same run where a peer exists.

/// Prints whether a value is at most its limit, and returns that.
#[must_use]
pub fn at_most(what: &str, value: f64, limit: f64) -> bool {
    report(what, value, limit, value <= limit, "at most")
}

/// Prints whether a value is at least its limit, and returns that.
#[must_use]
pub fn at_least(what: &str, value: f64, limit: f64) -> bool {
    report(what, value, limit, value >= limit, "at least")
}

fn report(what: &str, value: f64, limit: f64, kept: bool, bound: &str) -> bool {
    println!("  {}: {what} {value:.3}, promised {bound} {limit}", if kept { "kept" } else { "BROKEN" });
    kept
}
