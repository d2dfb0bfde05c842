//! Time: nanoseconds since the epoch inside, RFC 3339 in UTC outside. Code takes a [`Clock`]
//! as an argument; only [`SystemClock`] reads the time of the host.

use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

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
}

/// A clock that a test moves by hand.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn at(start: Timestamp) -> Self {
        Self(AtomicI64::new(start.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.store(self.now().plus(by).0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
