//! The memory of a workload, and whether it is too much.

use std::time::Duration;

use host::process_memory::resident_bytes;

use crate::continuous::growth::{Harm, MemoryLimit};

/// Between two readings: a busy job grows by a hundred megabytes in a second.
const MEMORY_EVERY: Duration = Duration::from_secs(1);

/// Resident memory of a process in bytes, if `/proc` shows it.
pub(super) async fn memory_of(pid: u32) -> Option<u64> {
    tokio::task::spawn_blocking(move || resident_bytes(Some(pid))).await.ok().flatten()
}

/// Reads the memory of a process: whether that is too much. One that cannot be read has ended, or `/proc` hides it.
pub(super) async fn read_memory(pid: u32, limit: &mut MemoryLimit) -> Option<Harm> {
    memory_of(pid).await.and_then(|memory| limit.seen(memory))
}

/// Reads the memory of a process until it is too much.
pub(super) async fn until_too_large(pid: u32, mut limit: MemoryLimit) -> Harm {
    loop {
        tokio::time::sleep(MEMORY_EVERY).await;
        if let Some(harm) = read_memory(pid, &mut limit).await {
            return harm;
        }
    }
}
