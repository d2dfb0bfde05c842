//! The time since boot, in which the kernel gives the start of a process.

use std::{io, time::Duration};

use model::{time::Timestamp, workload::ProcessKey};
use nix::time::{ClockId, clock_gettime};

/// The present in the units of start times, rounded up.
///
/// # Errors
/// If the kernel has no such clock.
pub fn ticks() -> io::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    let ticks = now.as_nanos() * u128::from(rustix::param::clock_ticks_per_second()) / 1_000_000_000 + 1;
    Ok(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// When this process started, at the time `now`; `None` where the clock does not tell, also for a start in the future.
pub fn started(process: ProcessKey, now: Timestamp) -> Option<Timestamp> {
    let uptime = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    let age = age(process.start_ticks, uptime)?;
    Some(Timestamp(now.0.saturating_sub(i64::try_from(age.as_nanos()).ok()?)))
}

/// The age of a process at this time since boot; `None` when it had not started.
#[expect(clippy::cast_precision_loss, reason = "ticks since boot: exact for 2^53 of them")]
pub(crate) fn age(start_ticks: u64, uptime: Duration) -> Option<Duration> {
    let start = start_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    uptime.checked_sub(Duration::try_from_secs_f64(start).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_told_from_its_ticks() {
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!(age(second * 7, Duration::from_secs(10)), Some(Duration::from_secs(3)));
        assert_eq!(age(second * 7, Duration::from_secs(6)), None);
        let now = Timestamp(1_795_000_000_000_000_000);
        let of = |start_ticks| started(ProcessKey { pid: 1, start_ticks }, now);
        assert!(of(0).is_some_and(|boot| boot < now));
        assert_eq!(of(ticks().unwrap() + 3600 * second), None);
    }
}
