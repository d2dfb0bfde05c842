//! The check of a destination by the agent itself, as its user and within its unit's network rules.
//!
//! It writes, reads and deletes one small object with a random name. Must never touch another object.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    destinations::{
        self, Destination, SendRate, Transport,
        target::{TransferError, UploadTarget},
    },
    own_thread,
};

/// What a destination permits.
#[derive(Debug, Clone)]
pub struct DestinationCheck {
    /// The destination's name.
    pub name: String,
    /// Where the object was.
    pub url: String,
    /// Who the destination takes the agent for; empty if its credentials cannot be read.
    pub identity: String,
    /// Whether an object could be written.
    pub write: Result<(), TransferError>,
    /// Whether it could be read back as it was written.
    pub read: Result<(), TransferError>,
    /// Whether it could be deleted.
    pub delete: Result<(), TransferError>,
}

/// Writes, reads and deletes one small object at each of these destinations, one after the other, on a thread of its own.
/// A request is given up when nothing moves for `idle`.
///
/// # Errors
/// If the check itself cannot run.
pub async fn check_destinations(
    wanted: Vec<Destination>,
    idle: Duration,
) -> Result<Vec<DestinationCheck>, String> {
    let check = move || async move {
        let transport = Transport::new(idle, SendRate::default());
        let mut checked = Vec::new();
        for destination in wanted {
            checked.push(check_one(destination, transport.clone()).await);
        }
        checked
    };
    own_thread::run("upload-check", check).await
}

async fn check_one(destination: Destination, transport: Transport) -> DestinationCheck {
    let name = destination.name.to_string();
    let url = match destination.url.example() {
        Ok(url) => url,
        // A template is checked with examples when it is read.
        Err(error) => return refused(name, destination.url.to_string(), &TransferError::other(error)),
    };
    let target = {
        let url = url.clone();
        let open = move || destinations::open(&url, Some(&destination), transport);
        tokio::task::spawn_blocking(open).await
    };
    match target.unwrap_or_else(|error| Err(TransferError::other(error))) {
        Ok(target) => try_out(name, url.to_string(), &*target).await,
        Err(error) => refused(name, url.to_string(), &error),
    }
}

fn refused(name: String, url: String, error: &TransferError) -> DestinationCheck {
    let all = || Err(error.clone());
    DestinationCheck { name, url, identity: String::new(), write: all(), read: all(), delete: all() }
}

async fn try_out(name: String, url: String, target: &dyn UploadTarget) -> DestinationCheck {
    let random = format!("{:016x}", fastrand::u64(..));
    // No session's name begins with a dot.
    let path = format!(".tpuscope/.check-{random}");
    let identity = target.identity().await;
    let write = target.put(&path, Bytes::from(random.clone()), None).await;
    if let Err(error) = &write {
        return DestinationCheck { identity, ..refused(name, url, error) };
    }
    let read = match target.get(&path).await {
        Ok(Some(found)) if found == random.as_bytes() => Ok(()),
        Ok(_) => Err(TransferError::other("what was written is not what is there")),
        Err(error) => Err(error),
    };
    let delete = target.delete(&path).await;
    target.remove_empty_folders().await;
    DestinationCheck { name, url, identity, write, read, delete }
}
