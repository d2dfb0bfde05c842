//! `host:port` of a profiler.

use std::{fmt, net::SocketAddr, str::FromStr};

use thiserror::Error;

/// Longest name that DNS allows.
const MAX_HOST: usize = 253;

/// Where a profiler listens: a host name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    host: String,
    port: u16,
}

/// How many characters of a bad one are shown.
const SHOWN: usize = 80;

/// The text is not `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadTarget {
    /// It has no host, no port, or a host that is no name.
    #[error("expected HOST:PORT, got `{0}`")]
    Form(String),
    /// Its port is a number that no port has.
    #[error("`{0}` is not a port: ports are 1 to 65535")]
    Port(String),
}

impl Target {
    /// The host, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is this machine by its loopback.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }
}

impl From<SocketAddr> for Target {
    fn from(at: SocketAddr) -> Self {
        Self { host: at.ip().to_string(), port: at.port() }
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let shown = |text: &str| text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        let bad = || BadTarget::Form(shown(text));
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let no_port = || if is_number { BadTarget::Port(shown(port)) } else { bad() };
        let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(no_port)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
            Some(_) => return Err(bad()),
            None => host,
        };
        let name = |host: &str| {
            host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
                && !host.starts_with('-')
        };
        let known = host.parse::<std::net::IpAddr>().is_ok() || name(host);
        if host.is_empty() || host.len() > MAX_HOST || !known {
            return Err(bad());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_host_and_port() {
        for good in ["localhost:9012", "10.0.0.7:1", "[::1]:9012", "tpu-host_3.example:65535"] {
            assert_eq!(good.parse::<Target>().expect(good).to_string(), good);
        }
        assert!("[::1]:9".parse::<Target>().expect("fine").is_loopback());
        for bad in
            ["", "host", "host:", ":1", "host:0", "host:70000", "a b:1", "a/b:1", "[x]:1", "-x:1", "a:b:1"]
        {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
        for port in ["99999", "0", "123456789012345678901"] {
            let error = format!("localhost:{port}").parse::<Target>().unwrap_err();
            assert_eq!(error.to_string(), format!("`{port}` is not a port: ports are 1 to 65535"));
        }
        assert_eq!("a\nb".parse::<Target>().unwrap_err().to_string(), "expected HOST:PORT, got `a\\nb`");
    }
}
