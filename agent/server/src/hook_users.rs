//! Section `[slurm]`: whose hooks the agent believes.
//!
//! A prolog and an epilog speak for the user of a job. The agent takes that from root and from one more user, and from nobody
//! else: all others register only jobs of their own.

use documented::{Documented, DocumentedFields};
use nix::unistd::User;
use serde::{Deserialize, Serialize};

/// The hooks of Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    /// The user that slurmd runs prologs and epilogs as, if it is not root: SlurmdUser of slurm.conf. It may register jobs of all
    /// users. Empty: only root may.
    pub user: String,
}

/// There is no such user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no user `{0}`")]
pub struct UnknownUser(pub String);

impl SlurmSettings {
    /// The id of the user. `None`: there is none beside root. Blocks: the user database may be a directory server.
    ///
    /// # Errors
    /// If there is no such user, or the user database does not say so.
    pub fn uid(&self) -> Result<Option<u32>, UnknownUser> {
        if self.user.is_empty() {
            return Ok(None);
        }
        match User::from_name(&self.user) {
            Ok(Some(user)) => Ok(Some(user.uid.as_raw())),
            Ok(None) | Err(_) => Err(UnknownUser(self.user.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_looked_up_by_name() {
        let uid = |user: &str| SlurmSettings { user: user.to_owned() }.uid();
        assert_eq!(uid(""), Ok(None));
        assert_eq!(uid("root"), Ok(Some(0)));
        assert_eq!(uid("no-such-user").unwrap_err().to_string(), "there is no user `no-such-user`");
    }
}
