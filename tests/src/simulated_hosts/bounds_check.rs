//! What a session over simulated hosts claims, beside what is true.

use serde_json::Value;

use super::TrueHost;

/// The clocks and starts of one session, compared with the truth.
#[derive(Debug, Default)]
pub struct BoundsCheck {
    /// The hosts.
    pub hosts: usize,
    /// Hosts whose true offset is not within the stated bound.
    pub wrong_offsets: usize,
    /// Hosts whose true start is further from the start of the window than the stated bound.
    pub wrong_starts: usize,
    /// The errors of the starts of the hosts whose best round trip took 5 ms or less, milliseconds, in order.
    pub near_errors: Vec<f64>,
    /// The largest error of a start, milliseconds.
    pub largest_error: f64,
    /// From the end of the window until all parts were copied, seconds.
    pub copied_after: f64,
}

/// A best round trip of this much or less is near, nanoseconds.
const NEAR: u64 = 5_000_000;

impl BoundsCheck {
    /// Of the manifest of a session and of what each host, in its order, was given as its start.
    ///
    /// # Panics
    /// If the manifest lacks a host, or what a host needs.
    pub fn of(manifest: &Value, starts: &[(TrueHost, i64)]) -> Self {
        let time = |value: &Value| -> jiff::Timestamp { value.as_str().unwrap().parse().unwrap() };
        let begin = time(&manifest["window"]["start"]);
        let end = time(&manifest["window"]["stop"]);
        let hosts = manifest["hosts"].as_array().unwrap();
        assert_eq!(hosts.len(), starts.len(), "{}", manifest["missing"]);
        let copied_after = time(&manifest["created"]).duration_since(end).as_secs_f64();
        let mut verdict = Self { hosts: hosts.len(), copied_after, ..Self::default() };
        // Both are in the order of the hosts' numbers.
        for (host, (truth, start)) in hosts.iter().zip(starts) {
            let clock = &host["clock"];
            let (offset, bound) = (clock["offset_ns"].as_i64().unwrap(), clock["bound_ns"].as_u64().unwrap());
            let error = (i128::from(*start) - begin.as_nanosecond()).unsigned_abs();
            verdict.wrong_offsets += usize::from(offset.abs_diff(truth.ahead_ns) > bound);
            verdict.wrong_starts += usize::from(error > u128::from(bound));
            #[expect(clippy::cast_precision_loss, reason = "milliseconds to be shown")]
            let error = error as f64 / 1e6;
            verdict.largest_error = verdict.largest_error.max(error);
            if bound * 2 <= NEAR {
                verdict.near_errors.push(error);
            }
        }
        verdict.near_errors.sort_by(f64::total_cmp);
        verdict
    }

    /// The 99th of 100 errors of near hosts; none: no host is near.
    pub fn near_p99(&self) -> Option<f64> {
        let place = (self.near_errors.len() * 99).div_ceil(100).checked_sub(1)?;
        self.near_errors.get(place).copied()
    }
}
