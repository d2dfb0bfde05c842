//! The arguments of commands that change sessions of the agent: names only. Nothing in a folder of the user, or elsewhere,
//! is ever changed or removed.

use xprof::session::SessionName;

use super::location::Location;
use crate::{failure::Failure, remedies};

/// The names; a path is refused before anything is done.
pub(super) fn of<'a>(locations: &'a [Location], command: &str) -> Result<Vec<&'a SessionName>, Failure> {
    let name = |location: &'a Location| match location {
        Location::Name(name) => Ok(name),
        Location::Path(path) => Err(remedies::changed_path(&path.display(), command)),
        Location::Url(url) => Err(remedies::changed_path(url, command)),
    };
    locations.iter().map(name).collect()
}
