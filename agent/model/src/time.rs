//! Time: nanoseconds since the epoch inside, RFC 3339 in UTC outside. Code takes a [`Clock`]
//! as an argument; only [`SystemClock`] reads the time of the host.

use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::time::{ClockId, clock_gettime};
use serde::{Serialize, Serializer};

/// An instant, in nanoseconds since the epoch (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// How long before `now` this instant was; zero when it lies in the future.
    pub fn age(self, now: Timestamp) -> Duration {
        Duration::from_nanos(u64::try_from(now.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// This instant moved forward.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// This instant after the clock was stepped by so many nanoseconds: how long ago it was stays the same.
    #[must_use]
    pub fn stepped(self, by_ns: i64) -> Self {
        Self(self.0.saturating_add(by_ns))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(at) => write!(f, "{at}"),
            Err(_) => write!(f, "{} ns", self.0),
        }
    }
}

/// An instant before the epoch becomes the epoch.
impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        UNIX_EPOCH + Timestamp(0).age(at)
    }
}

impl From<Timestamp> for jiff::Timestamp {
    fn from(at: Timestamp) -> Self {
        // The range of nanoseconds in an `i64` lies within that of the other type.
        jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default()
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// The time since boot, suspension included: no step of the wall clock changes it.
    fn uptime(&self) -> Duration;
}

/// The host's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    fn uptime(&self) -> Duration {
        // Every kernel that this program runs on has the clock.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
    }
}

/// A clock that a test moves by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: AtomicI64,
    uptime: AtomicI64,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn at(start: Timestamp) -> Self {
        Self { now: AtomicI64::new(start.0), uptime: AtomicI64::new(0) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.store(self.now().plus(by).0, Ordering::SeqCst);
        let by = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        self.uptime.fetch_add(by, Ordering::SeqCst);
    }

    /// Steps the wall clock, while no time goes by.
    pub fn step(&self, by_ns: i64) {
        self.now.fetch_add(by_ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.uptime.load(Ordering::SeqCst)).unwrap_or(0))
    }
}
