//! Where sessions are uploaded to: the destinations of the settings, as buckets and folders.
//!
//! Must never take a URL from a caller: the agent's credentials are not the caller's.

mod bucket;
mod credentials;
mod folder;
mod google_account;
mod http_client;
mod idle;
mod rate;
mod reader;
mod settings;
pub mod target;
mod url;

use std::sync::Arc;

pub use google_account::GoogleAccount;
pub use http_client::Transport;
pub use rate::SendRate;
pub use reader::{BucketListing, BucketObject, BucketReader, BucketUrl, BucketUrlError};
pub use settings::{
    Allow, Destination, DestinationName, DestinationNameError, Destinations, NO_DESTINATION, UploadWhen,
};
use target::{TransferError, UploadTarget};
pub use url::{UploadUrl, UrlError, UrlTemplate};

/// Opens the target of a URL of `destination`; `None`: of one that the settings have no more. Blocks.
///
/// # Errors
/// If the credentials cannot be read.
pub fn open(
    url: &UploadUrl,
    destination: Option<&Destination>,
    transport: Transport,
) -> Result<Arc<dyn UploadTarget>, TransferError> {
    Ok(match url {
        UploadUrl::Bucket { bucket, prefix } => {
            let credentials = destination.and_then(|destination| destination.credentials.as_deref());
            Arc::new(bucket::Bucket::open(bucket, prefix, credentials, transport)?)
        }
        UploadUrl::Folder(path) => {
            let base = destination.and_then(|destination| destination.url.base_folder());
            let base = base.unwrap_or_else(|| path.clone());
            Arc::new(folder::Folder::new(path.clone(), base).with_rate(transport.rate()))
        }
    })
}
