//! Where a host of a session over several hosts sends its parts: to one place, under one name, for all of them.

use ::sessions::{CaptureError, recorder::JobAndUser};
use model::time::Timestamp;
use store::{
    destinations::Destinations,
    uploads::{PartsDestination, UploadChoice, Uploads},
};
use tonic::Status;
use tracing::warn;
use xprof::session::{SessionId, SessionName};

use super::{access::Scope, grpc_captures::upload_choice};

/// Where one host of several sends its parts, of these jobs and users, for a session of this time.
pub(super) fn parts_upload(
    destinations: &Destinations,
    wanted: &str,
    scope: &Scope,
    at: Timestamp,
    parts: &[JobAndUser],
) -> Result<UploadChoice, Status> {
    let name = match upload_choice(destinations, wanted, scope)? {
        UploadChoice::Nowhere => return Ok(UploadChoice::Nowhere),
        UploadChoice::To(name) => name,
        _ => return Ok(UploadChoice::Parts(None)),
    };
    let url = destinations.find(name.as_str()).map(|found| found.url.resolve_parts(at.into(), parts));
    let url = url.ok_or_else(|| Status::unavailable("the agent's settings have just changed"))?;
    let url = url.map_err(|error| Status::invalid_argument(format!("destination {name}: {error}")))?;
    Ok(UploadChoice::Parts(Some(PartsDestination { name, url })))
}

/// Refuses a name that another session has where the parts go: the other hosts would keep to it.
pub(super) async fn check_name(
    uploads: &Uploads,
    session: &SessionName,
    id: &SessionId,
    agreed: &PartsDestination,
) -> Result<(), CaptureError> {
    match uploads.is_free(agreed, session, id).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let (session, destination) = (session.clone(), agreed.name.clone());
            Err(CaptureError::NameTakenThere { session, destination })
        }
        Err(error) => {
            // The upload tries again for as long as it takes, and claims the name then.
            let destination = &agreed.name;
            warn!(%session, %destination, %error, "cannot see whether the name is free there");
            Ok(())
        }
    }
}
