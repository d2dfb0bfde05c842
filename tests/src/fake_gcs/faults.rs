//! What can go wrong with a request, and which requests it goes wrong with.

use std::time::Duration;

/// Before or after the request took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing was stored or removed.
    BeforeCommit,
    /// It was, and the client is not told.
    AfterCommit,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GcsEffect {
    /// This status, with an error body as the service sends it.
    Status(u16, Moment),
    /// The connection ends when so many bytes of the request's body have arrived; nothing is stored.
    CutRequest(u64),
    /// The request takes effect, and the connection ends in the middle of the answer.
    CutAnswer,
    /// No answer, and no end of the connection.
    Hang(Moment),
    /// The connection moves so many bytes in each direction at a time, with such a pause after them.
    Slow(usize, Duration),
    /// An ETag that is not the object's.
    WrongEtag,
    /// A length that is not the object's; for HEAD only.
    WrongSize,
    /// A checksum that is not the object's.
    WrongCrc,
    /// No `x-goog-hash`.
    NoHash,
}

/// An effect and the requests that have it.
#[derive(Debug, Clone)]
pub struct GcsFault {
    effect: GcsEffect,
    method: Option<&'static str>,
    containing: Vec<String>,
    skip: usize,
    times: usize,
}

impl GcsFault {
    /// On the first request of any kind, once.
    pub fn new(effect: GcsEffect) -> Self {
        Self { effect, method: None, containing: Vec::new(), skip: 0, times: 1 }
    }

    /// Only on requests with this method.
    #[must_use]
    pub fn on(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Only on requests whose `/bucket/object?query`, decoded, contains this text, besides those of earlier calls.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.containing.push(text.to_owned());
        self
    }

    /// First on the `n`-th request that matches, from 1.
    #[must_use]
    pub fn from_nth(mut self, n: usize) -> Self {
        self.skip = n - 1;
        self
    }

    /// On so many matching requests.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// On all matching requests.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// The requests that it still waits for, if there is an end of them.
    pub(super) fn left(&self) -> usize {
        if self.times == usize::MAX { 0 } else { self.times }
    }

    fn matches(&self, method: &str, target: &str) -> bool {
        self.times > 0
            && self.method.is_none_or(|wanted| wanted == method)
            && self.containing.iter().all(|text| target.contains(text))
    }

    /// The effect for this request, which is thereby counted.
    pub(super) fn take(faults: &mut [Self], method: &str, target: &str) -> Option<GcsEffect> {
        let mut effect = None;
        for fault in faults.iter_mut().filter(|fault| fault.matches(method, target)) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if effect.is_none() {
                fault.times = if fault.times == usize::MAX { usize::MAX } else { fault.times - 1 };
                effect = Some(fault.effect.clone());
            }
        }
        effect
    }
}
