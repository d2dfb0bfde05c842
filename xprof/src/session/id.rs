//! The random id of a session: two sessions of one name are told apart by it.

use std::{fmt, str::FromStr};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// Hexadecimal digits of an id.
const DIGITS: usize = 32;

/// An id: 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SessionId(String);

/// A text that is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id of a session is 32 lower-case hexadecimal digits")]
pub struct BadSessionId;

impl SessionId {
    /// A new one; `None` if the system gives no random bytes.
    pub fn random() -> Option<Self> {
        let mut bytes = [0; DIGITS / 2];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
        (filled == bytes.len()).then(|| Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = BadSessionId;

    fn from_str(text: &str) -> Result<Self, BadSessionId> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for SessionId {
    type Error = BadSessionId;

    fn try_from(text: String) -> Result<Self, BadSessionId> {
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if hex && text.len() == DIGITS { Ok(Self(text)) } else { Err(BadSessionId) }
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_random_and_its_text_is_checked() {
        let (one, other) = (SessionId::random().unwrap(), SessionId::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.as_str().parse(), Ok(one.clone()));
        let upper = one.as_str().replace(|_| true, "A");
        for bad in
            ["", "0", &one.as_str()[1..], &format!("{one}0"), &upper, "../../../../../../../../../../.."]
        {
            assert_eq!(bad.parse::<SessionId>(), Err(BadSessionId), "{bad}");
        }
    }
}
