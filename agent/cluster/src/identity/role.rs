//! Roles, and the URI among the names of a certificate that gives one: `tpuscope:role:operator`.

use std::{fmt, str::FromStr};

use model::untrusted::{LABEL, clean};
use serde::{Deserialize, Serialize};

/// What all URIs of roles begin with.
const URI_PREFIX: &str = "tpuscope:role:";

/// What the holder of a certificate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Role {
    /// A client with the rights of root on the host.
    Operator,
    /// A client that reads measurements.
    Viewer,
    /// An agent that serves. As a client it has no rights.
    Agent,
}

/// Why a certificate has no single role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// Its URI names none of the roles.
    #[error("`{0}` is no role: expected operator, viewer or agent")]
    Unknown(String),
    /// It has several of them.
    #[error("it has more than one role")]
    Several,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Viewer, Self::Agent];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
        }
    }

    /// The URI that gives it.
    pub fn uri(self) -> String {
        format!("{URI_PREFIX}{}", self.as_str())
    }

    /// The role among the URIs of a certificate; `None`: none of them is about roles.
    ///
    /// # Errors
    /// If there is more than one, or an unknown one.
    pub fn of_uris<'a>(uris: impl IntoIterator<Item = &'a str>) -> Result<Option<Self>, RoleError> {
        let mut named = uris.into_iter().filter_map(|uri| uri.strip_prefix(URI_PREFIX));
        let Some(role) = named.next() else { return Ok(None) };
        match named.next() {
            Some(_) => Err(RoleError::Several),
            None => role.parse().map(Some),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let known = Self::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or_else(|| RoleError::Unknown(clean(text, LABEL)))
    }
}

impl TryFrom<String> for Role {
    type Error = RoleError;

    fn try_from(text: String) -> Result<Self, RoleError> {
        text.parse()
    }
}

impl From<Role> for String {
    fn from(role: Role) -> Self {
        role.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_one_role_or_none() {
        for role in Role::ALL {
            assert_eq!(Role::of_uris([&*role.uri()]), Ok(Some(role)));
        }
        assert_eq!(Role::of_uris(["spiffe://x/y", "tpuscope:role:viewer"]), Ok(Some(Role::Viewer)));
        assert_eq!(Role::of_uris(["spiffe://x/tpuscope:role:viewer", "urn:x"]), Ok(None));
        assert_eq!(Role::of_uris([]), Ok(None));
        let both = ["tpuscope:role:viewer", "tpuscope:role:operator"];
        assert_eq!(Role::of_uris(both), Err(RoleError::Several));
        for unknown in ["admin", "", "Operator", "operator/x"] {
            let uri = format!("tpuscope:role:{unknown}");
            assert_eq!(Role::of_uris([&*uri]), Err(RoleError::Unknown(unknown.to_owned())));
        }
    }
}
