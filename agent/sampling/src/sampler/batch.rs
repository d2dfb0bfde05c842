//! Batches: the result of one tick of one source, published to the subscribers.
//!
//! The queue is bounded: a subscriber that is slower than the sources loses the oldest batches and receives their
//! number. Must never delay the sampler.

use std::sync::Arc;

use model::{
    sample::{Origin, Sample},
    time::Timestamp,
};
use tokio::sync::broadcast;

use crate::sources::Absence;

/// The maximum number of batches that wait for a subscriber. A batch of 8 chips takes about 100 KiB.
const QUEUE: usize = 16;

/// The samples and absences of one tick of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The source.
    pub origin: Origin,
    /// When the tick was due.
    pub at: Timestamp,
    /// The samples are shown until then, if they are not renewed.
    pub fresh_until: Timestamp,
    /// The values.
    pub samples: Vec<Sample>,
    /// What is missing.
    pub absent: Vec<Absence>,
    /// Why there was nothing to read on this host. That is no fault.
    pub unused: Option<String>,
}

/// Sends batches to all listeners.
pub(super) struct BatchPublisher(broadcast::Sender<Arc<Batch>>);

impl BatchPublisher {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(QUEUE))
    }

    pub(super) fn publish(&self, batch: Arc<Batch>) {
        // An error means that there is no subscriber.
        let _ = self.0.send(batch);
    }

    pub(super) fn subscribe(&self) -> BatchListener {
        BatchListener { receiver: self.0.subscribe() }
    }
}

/// What a listener receives.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// The next batch.
    Batch(Arc<Batch>),
    /// The listener was too slow: so many batches are lost to it.
    Lost(u64),
}

/// Receives every batch that is published after it was made.
pub struct BatchListener {
    receiver: broadcast::Receiver<Arc<Batch>>,
}

impl BatchListener {
    /// The next batch, or how many were lost; `None` when the sampler is gone.
    pub async fn next(&mut self) -> Option<Delivery> {
        match self.receiver.recv().await {
            Ok(batch) => Some(Delivery::Batch(batch)),
            Err(broadcast::error::RecvError::Lagged(lost)) => Some(Delivery::Lost(lost)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(second: i64) -> Arc<Batch> {
        let at = Timestamp(second);
        let (samples, absent) = (Vec::new(), Vec::new());
        Arc::new(Batch { origin: Origin::Host, at, fresh_until: at, samples, absent, unused: None })
    }

    #[tokio::test]
    async fn a_slow_listener_loses_the_oldest_and_knows_how_many() {
        let publisher = BatchPublisher::new();
        let (mut slow, mut quick) = (publisher.subscribe(), publisher.subscribe());
        let published = 40_i64;
        for second in 0..published {
            publisher.publish(batch(second));
            assert_eq!(quick.next().await, Some(Delivery::Batch(batch(second))));
        }
        let kept = i64::try_from(QUEUE).unwrap();
        assert_eq!(slow.next().await, Some(Delivery::Lost((published - kept).unsigned_abs())));
        for second in published - kept..published {
            assert_eq!(slow.next().await, Some(Delivery::Batch(batch(second))));
        }
        drop(publisher);
        assert_eq!((slow.next().await, quick.next().await), (None, None));
    }
}
