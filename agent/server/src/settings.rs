//! Settings section `[api]`.

use std::{
    fmt,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use documented::{Documented, DocumentedFields};
use model::absolute_path::{self, RelativePathError};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The addresses on which the agent serves. `http`, `grpc` and `xprof` must be loopback addresses: they have no TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Path of the Unix socket. It serves the whole API; the user of a caller decides what the caller may do.
    #[serde(deserialize_with = "socket_path")]
    pub socket: PathBuf,
    /// File mode of the socket. By default every user may connect.
    pub socket_mode: FileMode,
    /// Group of the socket. Empty: the agent's own group.
    pub socket_group: String,
    /// Members of this group have the rights of root. Empty: only root and the agent's user have them. No process in
    /// another pid namespace (a container) has them.
    pub admin_group: String,
    /// Address of the read-only HTTP server (metrics, health, JSON), or "off".
    pub http: LoopbackListen,
    /// Address of the read-only gRPC server (health, reflection, status, samples, history), or "off".
    pub grpc: LoopbackListen,
    /// Address of the listener for a central Prometheus, such as "0.0.0.0:4394", or "off". It serves only /metrics,
    /// /healthz and /readyz.
    pub metrics: ListenAny,
    /// Web configuration file of the Prometheus exporter toolkit for `metrics`: TLS, basic authentication, client
    /// certificates. The agent reads it again after a change. Empty: no file.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub metrics_web_config: PathBuf,
    /// Serve `metrics` to other hosts without TLS. Everyone who can connect can read all series, and everyone who can
    /// read the network traffic can read the passwords.
    pub metrics_plaintext: bool,
    /// Address of the listener for clients of XProf, such as "127.0.0.1:4392", or "off". A capture by XProf there profiles
    /// all processes of this host that its user may profile.
    pub xprof: LoopbackListen,
    /// Let every user of this host, and every container in its network, profile every process by `xprof`. By default a
    /// caller may do what its user may do on the socket.
    pub xprof_anyone: bool,
    /// Folders, such as ["/home"], below which the agent writes the trace itself if a client of `xprof` names a folder there:
    /// as the user of the client, which an agent can that runs as root or as this user. Elsewhere the client gets the
    /// trace and writes it. No link below them is followed.
    #[serde(deserialize_with = "xprof_roots")]
    pub xprof_roots: Vec<PathBuf>,
    /// Host names that the Host header of an HTTP request may have, in addition to localhost and loopback addresses.
    pub allowed_hosts: Vec<String>,
    /// Maximum number of connections of each listener. On TCP a new connection replaces the least active one. On the
    /// socket it is closed; one user (except root and the agent's user) gets at most a quarter of the connections.
    pub max_connections: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/tpuscope/agent.sock"),
            socket_mode: FileMode(0o666),
            socket_group: String::new(),
            admin_group: "tpuscope".into(),
            http: LoopbackListen::On(SocketAddr::from(([127, 0, 0, 1], 4390))),
            grpc: LoopbackListen::On(SocketAddr::from(([127, 0, 0, 1], 4391))),
            metrics: ListenAny::Off,
            metrics_web_config: PathBuf::new(),
            metrics_plaintext: false,
            xprof: LoopbackListen::Off,
            xprof_anyone: false,
            xprof_roots: Vec::new(),
            allowed_hosts: Vec::new(),
            max_connections: 64,
        }
    }
}

impl Settings {
    /// The web configuration file of the metrics listener, if one is set.
    pub fn web_config(&self) -> Option<&Path> {
        (!self.metrics_web_config.as_os_str().is_empty()).then_some(&*self.metrics_web_config)
    }

    /// Whether the metrics listener may serve without TLS: on a loopback address, or if the settings say so.
    pub fn allows_plaintext_metrics(&self) -> bool {
        let loopback =
            self.metrics.address().is_some_and(|address| address.ip().to_canonical().is_loopback());
        loopback || self.metrics_plaintext
    }
}

/// The longest path of a Unix socket on Linux, in bytes.
const SOCKET_PATH_BYTES: usize = 107;

/// Why a path cannot be used for a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// The path is empty.
    #[error("expected the path of a socket, such as `/run/tpuscope/agent.sock`, got an empty text")]
    Empty,
    /// The path has more bytes than Linux permits.
    #[error("expected a socket path of at most {SOCKET_PATH_BYTES} bytes, got {0} bytes")]
    TooLong(usize),
    /// The path is relative.
    #[error(transparent)]
    Relative(#[from] RelativePathError),
}

/// Checks that a Unix socket can have this path.
///
/// # Errors
/// Why it cannot.
pub fn check_socket_path(path: &Path) -> Result<(), SocketPathError> {
    match path.as_os_str().as_bytes().len() {
        0 => Err(SocketPathError::Empty),
        bytes if bytes > SOCKET_PATH_BYTES => Err(SocketPathError::TooLong(bytes)),
        _ => Ok(absolute_path::check(path)?),
    }
}

fn xprof_roots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let roots = absolute_path::each(deserializer)?;
    match roots.iter().find(|root| root.components().any(|part| part == Component::ParentDir)) {
        Some(root) => {
            Err(D::Error::custom(format!("expected a folder without `..`, got `{}`", root.display())))
        }
        None => Ok(roots),
    }
}

fn socket_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    check_socket_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// A loopback address to listen on, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LoopbackListen {
    /// LoopbackListen on this address. Port 0: any free port.
    On(SocketAddr),
    /// Do not listen.
    Off,
}

impl LoopbackListen {
    /// The address. `None` for `off`.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::On(address) => Some(address),
            Self::Off => None,
        }
    }
}

/// Why a [`LoopbackListen`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoopbackListenError {
    /// The text is neither an address nor `off`.
    #[error("expected IP:PORT, such as `127.0.0.1:PORT`, or `off`, got `{0}`")]
    NoAddress(String),
    /// The address is not a loopback address.
    #[error(
        "expected a loopback address, such as `127.0.0.1:PORT`, got `{0}`: other hosts could connect to it \
         without TLS"
    )]
    Remote(SocketAddr),
}

impl FromStr for LoopbackListen {
    type Err = LoopbackListenError;

    fn from_str(text: &str) -> Result<Self, LoopbackListenError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address: SocketAddr =
            text.parse().map_err(|_| LoopbackListenError::NoAddress(text.chars().take(60).collect()))?;
        if address.ip().to_canonical().is_loopback() {
            Ok(Self::On(address))
        } else {
            Err(LoopbackListenError::Remote(address))
        }
    }
}

impl TryFrom<String> for LoopbackListen {
    type Error = LoopbackListenError;

    fn try_from(text: String) -> Result<Self, LoopbackListenError> {
        text.parse()
    }
}

impl fmt::Display for LoopbackListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(address) => address.fmt(f),
            Self::Off => f.write_str("off"),
        }
    }
}

impl From<LoopbackListen> for String {
    fn from(listen: LoopbackListen) -> Self {
        listen.to_string()
    }
}

/// An address of any interface to listen on, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAny {
    /// LoopbackListen here; port 0 takes a free one.
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
#[error("expected IP:PORT, as in `0.0.0.0:4393`, or `off`, got `{0}`")]
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

/// Permission bits of a file, in octal: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileMode(u32);

impl FileMode {
    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// Why a [`FileMode`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an octal file mode up to 0777, such as \"0660\", got `{0}`")]
pub struct FileModeError(String);

impl TryFrom<String> for FileMode {
    type Error = FileModeError;

    fn try_from(text: String) -> Result<Self, FileModeError> {
        match u32::from_str_radix(&text, 8) {
            Ok(bits) if bits <= 0o777 => Ok(Self(bits)),
            _ => Err(FileModeError(text.chars().take(20).collect())),
        }
    }
}

impl From<FileMode> for String {
    fn from(mode: FileMode) -> Self {
        format!("{:04o}", mode.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_is_listened_on() {
        for good in ["127.0.0.1:4390", "127.8.9.1:1", "[::1]:4390", "[::ffff:127.0.0.1]:1", "off"] {
            assert_eq!(good.parse::<LoopbackListen>().unwrap().to_string(), good);
        }
        for remote in ["0.0.0.0:4390", "[::]:4390", "10.0.0.1:4390", "[::ffff:10.0.0.1]:1"] {
            assert!(
                matches!(remote.parse::<LoopbackListen>(), Err(LoopbackListenError::Remote(_))),
                "{remote}"
            );
        }
        for none in ["", "4390", "localhost:4390", "127.0.0.1", "Off", "127.0.0.1:99999"] {
            assert!(
                matches!(none.parse::<LoopbackListen>(), Err(LoopbackListenError::NoAddress(_))),
                "{none}"
            );
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
        assert_eq!(FileMode::try_from("0660".to_owned()).unwrap().bits(), 0o660);
        assert_eq!(String::from(FileMode(0o7)), "0007");
        for bad in ["", "0888", "1777", "-1", "rw"] {
            assert!(FileMode::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
