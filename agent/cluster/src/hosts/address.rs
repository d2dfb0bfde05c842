//! The name of a host as a user gives it, with an optional port.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use model::untrusted::{MESSAGE, clean};

/// The longest name, bytes: a DNS name, and a user before it.
const LONGEST: usize = 300;

/// A host: `tpu-001`, `me@10.0.0.1`, `b:4393`, `fe80::1`, `[fe80::1]:4393`. Its name holds only ASCII letters, digits and
/// `._:@-`, does not begin with `-`, and is not made of dots alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostAddress {
    name: String,
    port: Option<u16>,
}

/// Why a text is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostAddressError {
    /// A character that names do not have, a leading `-`, dots alone, or nothing.
    #[error(
        "`{0}` is no host name: expected letters, digits and . _ : @ -, no - at the begin, and not dots alone"
    )]
    Name(String),
    /// Too long.
    #[error("`{0}` is no host name: it has more than {LONGEST} bytes")]
    Long(String),
    /// Not a port.
    #[error("`{0}` has no valid port: expected HOST:PORT with a port from 1 to 65535")]
    Port(String),
}

impl HostAddress {
    /// The name without the port.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port, where one is given.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl FromStr for HostAddress {
    type Err = HostAddressError;

    fn from_str(text: &str) -> Result<Self, HostAddressError> {
        let quoted = || clean(text, MESSAGE);
        let port_of = |text: &str| {
            let port = text.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| HostAddressError::Port(quoted()))
        };
        // Two colons without brackets are an IPv6 address without a port.
        let (name, port) = match (text.strip_prefix('['), text.split_once(':')) {
            (Some(rest), _) => {
                let (address, after) =
                    rest.split_once(']').ok_or_else(|| HostAddressError::Name(quoted()))?;
                if address.parse::<Ipv6Addr>().is_err() {
                    return Err(HostAddressError::Name(quoted()));
                }
                match after.strip_prefix(':') {
                    Some(port) => (address, Some(port_of(port)?)),
                    None if after.is_empty() => (address, None),
                    None => return Err(HostAddressError::Port(quoted())),
                }
            }
            (None, Some((name, port))) if !port.contains(':') => (name, Some(port_of(port)?)),
            (None, _) => (text, None),
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte);
        // `..` may stand in a path of a template.
        let is_a_name = name.rsplit('@').next().is_some_and(|host| host.bytes().any(|byte| byte != b'.'));
        if !is_a_name || name.starts_with('-') || !name.bytes().all(allowed) {
            return Err(HostAddressError::Name(quoted()));
        }
        if name.len() > LONGEST {
            return Err(HostAddressError::Long(quoted()));
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.name),
            Some(port) if self.name.contains(':') => write!(f, "[{}]:{port}", self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports_are_checked() {
        let parsed = |text: &str| text.parse::<HostAddress>();
        let good = |text: &str, name: &str, port| {
            let host = parsed(text).unwrap();
            assert_eq!((host.name(), host.port(), host.to_string()), (name, port, text.to_owned()));
        };
        good("tpu-001", "tpu-001", None);
        good("me@10.0.0.1:4393", "me@10.0.0.1", Some(4393));
        good("fe80::1", "fe80::1", None);
        good("::1", "::1", None);
        good("[::1]:4393", "::1", Some(4393));
        assert_eq!(parsed("[fe80::1]").unwrap(), parsed("fe80::1").unwrap());
        for bad in [
            "", "-a", "a b", "a\nb", "ä", "a/b", "a%b", "$a", ":1", "[a]:1", "[::1", "[]:1", "[1-2]", ".",
            "..", "me@..", "me@", "..:1",
        ] {
            assert!(matches!(parsed(bad), Err(HostAddressError::Name(_))), "{bad}");
        }
        for bad in ["a:", "a:0", "a:65536", "a:x", "a:-1", "[::1]:", "[::1]:0", "[::1]4393"] {
            assert!(matches!(parsed(bad), Err(HostAddressError::Port(_))), "{bad}");
        }
        let long = parsed(&"x".repeat(LONGEST + 1)).unwrap_err();
        assert!(matches!(&long, HostAddressError::Long(text) if text.len() < LONGEST), "{long}");
        assert_eq!(parsed("a\u{1b}[2J"), Err(HostAddressError::Name("a\u{fffd}[2J".into())));
    }
}
