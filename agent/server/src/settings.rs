//! Section `[api]`.

use std::{
    fmt,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// Who is served, and where. Addresses are of the loopback: remote access needs TLS, which this version lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// The Unix socket that serves everything, to each caller what its user may do.
    #[serde(deserialize_with = "socket_path")]
    pub socket: PathBuf,
    /// Mode of the socket. Every user may connect by default: what a caller may do is decided by its user id.
    pub socket_mode: Mode,
    /// Group of the socket; empty: the agent's own.
    pub socket_group: String,
    /// Members of this group may do what root may; empty: nobody but root.
    pub admin_group: String,
    /// Read-only HTTP: metrics, health, JSON. "off": none.
    pub http: Listen,
    /// Read-only gRPC: health, reflection, status, samples, history. "off": none.
    pub grpc: Listen,
    /// The address that serves /metrics, /healthz and /readyz to a central Prometheus, and nothing else, as in
    /// `0.0.0.0:4394`. "off": none.
    pub metrics: ListenAny,
    /// TLS, basic authentication and client certificates of `metrics`: a web configuration file of Prometheus' exporter
    /// toolkit. It is read again when it changes. Empty: none.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub metrics_web_config: PathBuf,
    /// Serve `metrics` to other hosts without TLS. Anybody who reaches the address can read every series, and whoever
    /// reads the network can read passwords.
    pub metrics_plaintext: bool,
    /// Names, beside localhost and loopback addresses, that the Host header of an HTTP request may carry.
    pub allowed_hosts: Vec<String>,
    /// Connections at a time on each listener. On TCP the quietest make room for more; on the socket more are closed
    /// at once, and a user other than root and the agent's own gets a quarter of them.
    pub max_connections: u16,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/tpuscope/agent.sock"),
            socket_mode: Mode(0o666),
            socket_group: String::new(),
            admin_group: "tpuscope".into(),
            http: Listen::On(SocketAddr::from(([127, 0, 0, 1], 4390))),
            grpc: Listen::On(SocketAddr::from(([127, 0, 0, 1], 4391))),
            metrics: ListenAny::Off,
            metrics_web_config: PathBuf::new(),
            metrics_plaintext: false,
            allowed_hosts: Vec::new(),
            max_connections: 64,
        }
    }
}

impl Api {
    /// The web configuration file of the metrics listener, where one is named.
    pub fn web_config(&self) -> Option<&Path> {
        (!self.metrics_web_config.as_os_str().is_empty()).then_some(&*self.metrics_web_config)
    }
}

/// The longest path of a Unix socket that Linux takes.
const SOCKET_PATH_BYTES: usize = 107;

/// Why a path cannot be a socket's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// Nothing written.
    #[error("the path of the socket is empty: write one, as in `/run/tpuscope/agent.sock`")]
    Empty,
    /// Longer than the system takes.
    #[error(
        "the path of the socket has {0} bytes, and Linux takes {SOCKET_PATH_BYTES} at most: write a shorter one"
    )]
    TooLong(usize),
}

/// Whether a Unix socket can have this path.
pub fn check_socket_path(path: &Path) -> Result<(), SocketPathError> {
    match path.as_os_str().as_bytes().len() {
        0 => Err(SocketPathError::Empty),
        bytes if bytes > SOCKET_PATH_BYTES => Err(SocketPathError::TooLong(bytes)),
        _ => Ok(()),
    }
}

fn socket_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    check_socket_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// A loopback address to listen on, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// Listen here; port 0 takes a free one.
    On(SocketAddr),
    /// Do not listen.
    Off,
}

impl Listen {
    /// The address, unless it is off.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::On(address) => Some(address),
            Self::Off => None,
        }
    }
}

/// Why a [`Listen`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Neither an address nor `off`.
    #[error("`{0}` is no address: write IP:PORT, as in `127.0.0.1:4390`, or `off`")]
    NoAddress(String),
    /// Reachable from elsewhere.
    #[error(
        "`{0}` can be reached from other hosts: that needs TLS, which this version lacks; write an address of the \
         loopback, as in `127.0.0.1:4390`"
    )]
    Remote(SocketAddr),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address: SocketAddr =
            text.parse().map_err(|_| ListenError::NoAddress(text.chars().take(60).collect()))?;
        if address.ip().to_canonical().is_loopback() {
            Ok(Self::On(address))
        } else {
            Err(ListenError::Remote(address))
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(address) => address.fmt(f),
            Self::Off => f.write_str("off"),
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

/// An address of any interface to listen on, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAny {
    /// Listen here; port 0 takes a free one.
    On(SocketAddr),
    /// Do not listen.
    Off,
}

impl ListenAny {
    /// The address, unless it is off.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::On(address) => Some(address),
            Self::Off => None,
        }
    }
}

/// Why a [`ListenAny`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected IP:PORT, as in `0.0.0.0:4394`, or `off`, got `{0}`")]
pub struct ListenAnyError(String);

impl TryFrom<String> for ListenAny {
    type Error = ListenAnyError;

    fn try_from(text: String) -> Result<Self, ListenAnyError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::On).map_err(|_| ListenAnyError(text.chars().take(60).collect()))
    }
}

impl From<ListenAny> for String {
    fn from(listen: ListenAny) -> Self {
        match listen {
            ListenAny::On(address) => address.to_string(),
            ListenAny::Off => "off".to_owned(),
        }
    }
}

/// A path that does not depend on where the agent is started, or none.
fn absolute_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.as_os_str().is_empty() || path.is_absolute() {
        return Ok(path);
    }
    Err(D::Error::custom(format_args!("expected an absolute path, got `{}`", path.display())))
}

/// Permission bits of a file, written in octal: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mode(u32);

impl Mode {
    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// Why a [`Mode`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no file mode: write octal digits up to 0777, as in \"0660\"")]
pub struct ModeError(String);

impl TryFrom<String> for Mode {
    type Error = ModeError;

    fn try_from(text: String) -> Result<Self, ModeError> {
        match u32::from_str_radix(&text, 8) {
            Ok(bits) if bits <= 0o777 => Ok(Self(bits)),
            _ => Err(ModeError(text.chars().take(20).collect())),
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        format!("{:04o}", mode.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_is_listened_on() {
        for good in ["127.0.0.1:4390", "127.8.9.1:1", "[::1]:4390", "[::ffff:127.0.0.1]:1", "off"] {
            assert_eq!(good.parse::<Listen>().unwrap().to_string(), good);
        }
        for remote in ["0.0.0.0:4390", "[::]:4390", "10.0.0.1:4390", "[::ffff:10.0.0.1]:1"] {
            assert!(matches!(remote.parse::<Listen>(), Err(ListenError::Remote(_))), "{remote}");
        }
        for none in ["", "4390", "localhost:4390", "127.0.0.1", "Off", "127.0.0.1:99999"] {
            assert!(matches!(none.parse::<Listen>(), Err(ListenError::NoAddress(_))), "{none}");
        }
    }

    #[test]
    fn any_interface_may_be_named_for_metrics() {
        for good in ["0.0.0.0:4394", "[::]:4394", "10.0.0.7:1", "off"] {
            assert_eq!(String::from(ListenAny::try_from(good.to_owned()).unwrap()), good);
        }
        for bad in ["", "4394", "host:4394", "Off"] {
            assert!(ListenAny::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(Mode::try_from("0660".to_owned()).unwrap().bits(), 0o660);
        assert_eq!(String::from(Mode(0o7)), "0007");
        for bad in ["", "0888", "1777", "-1", "rw"] {
            assert!(Mode::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
