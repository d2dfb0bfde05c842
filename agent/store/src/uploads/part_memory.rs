//! The memory of the parts that are being sent: a fixed number of buffers, which are used again.
//!
//! A buffer that is freed and allocated for each part stays with the allocator of each thread that had one.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The buffers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct PartMemory {
    permits: Arc<Semaphore>,
    free: Arc<Mutex<Vec<BytesMut>>>,
}

/// The right to have one part in memory.
#[derive(Debug)]
pub(crate) struct PartPermit {
    free: Arc<Mutex<Vec<BytesMut>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl PartMemory {
    /// Room for so many parts.
    pub(crate) fn new(parts: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(parts)), free: Arc::default() }
    }

    /// Waits until there is room for a part.
    pub(crate) async fn acquire(&self) -> PartPermit {
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await.ok();
        PartPermit { free: self.free.clone(), _permit: permit }
    }
}

impl PartPermit {
    /// A buffer with any content.
    pub(crate) fn buffer(&self) -> BytesMut {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Returns a buffer after it was sent.
    pub(crate) fn give_back(self, sent: Bytes) {
        // A connection that was given up may still have it: then another is made.
        if let Ok(buffer) = sent.try_into_mut() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn buffers_are_used_again_and_never_more_than_there_are_permits() {
        let memory = PartMemory::new(1);
        let permit = memory.acquire().await;
        assert!(tokio::time::timeout(std::time::Duration::ZERO, memory.acquire()).await.is_err());
        let mut buffer = permit.buffer();
        buffer.resize(1000, 1);
        let (sent, at) = (buffer.freeze(), memory.permits.available_permits());
        let address = sent.as_ptr();
        permit.give_back(sent);
        assert_eq!((at, memory.permits.available_permits()), (0, 1));
        let again = memory.acquire().await;
        let buffer = again.buffer();
        assert_eq!((buffer.as_ptr(), buffer.len()), (address, 1000));
        // One that somebody still has is not used again.
        let sent = buffer.freeze();
        let held = sent.clone();
        again.give_back(sent);
        assert_ne!(memory.acquire().await.buffer().as_ptr(), held.as_ptr());
    }
}
