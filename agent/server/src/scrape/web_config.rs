//! The web configuration file of the Prometheus exporter toolkit. Operators can reuse the file of their other
//! exporters.
//!
//! Source of the format: the toolkit's `docs/web-configuration.md`. Every key of the format is known. A value that
//! this agent does not support is an error and is never ignored. Must never log or print a password hash or a key.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use host::regular_file;
use serde::Deserialize;
use thiserror::Error;

use super::{shape, yaml};

/// The largest file that is read: configuration, certificate or key.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The highest bcrypt cost: one check of cost 14 takes about a second.
const MAX_BCRYPT_COST: u32 = 14;

/// Why a web configuration is refused.
#[derive(Debug, Error)]
pub enum WebConfigError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file larger than [`MAX_FILE_BYTES`].
    #[error("{} is larger than 1 MiB", .0.display())]
    TooLarge(PathBuf),
    /// Not YAML of this format.
    #[error("{}: {reason}", .path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A value that cannot be used.
    #[error("{key}: {reason}")]
    Value {
        /// The key, from the top of the file.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The file's content.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// TLS; absent: plaintext.
    pub tls_server_config: Option<TlsServerConfig>,
    /// HTTP.
    pub http_server_config: HttpServerConfig,
    /// User names and bcrypt hashes of their passwords; empty: no authentication.
    pub basic_auth_users: BTreeMap<String, String>,
    /// Limit of the request rate.
    pub rate_limit: Option<RateLimit>,
}

/// Section `tls_server_config`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsServerConfig {
    /// The server's certificate chain, PEM.
    pub cert: String,
    /// The same, in a file.
    pub cert_file: PathBuf,
    /// The server's key, PEM.
    pub key: String,
    /// The same, in a file.
    pub key_file: PathBuf,
    /// Certificates of the authorities that sign clients, PEM.
    pub client_ca: String,
    /// The same, in a file.
    pub client_ca_file: PathBuf,
    /// Whether clients need a certificate: the name of a Go `ClientAuthType`.
    pub client_auth_type: String,
    /// A client certificate must have one of these names; empty: any name.
    pub client_allowed_sans: Vec<String>,
    /// Names of cipher suites of TLS 1.2; empty: all safe ones.
    pub cipher_suites: Vec<String>,
    /// Elliptic curves in order of preference; empty: the library's order.
    pub curve_preferences: Vec<String>,
    /// Lowest version: `TLS12` or `TLS13`.
    pub min_version: String,
    /// Highest version.
    pub max_version: String,
    /// Has no effect, as in the toolkit since Go 1.17.
    #[serde(deserialize_with = "yaml_bool")]
    pub prefer_server_cipher_suites: Option<bool>,
}

impl std::fmt::Debug for TlsServerConfig {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServerConfig")
            .field("cert_file", &self.cert_file)
            .field("client_auth_type", &self.client_auth_type)
            .finish_non_exhaustive()
    }
}

/// Section `http_server_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpServerConfig {
    /// Whether HTTP/2 may be used. This listener uses only HTTP/1.1, which every client supports.
    #[serde(deserialize_with = "yaml_bool")]
    pub http2: Option<bool>,
    /// Headers added to each response.
    pub headers: BTreeMap<String, String>,
}

/// Section `rate_limit`: one request each `interval`, `burst` at once.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// The time after which one more request is allowed.
    #[serde(deserialize_with = "go_duration")]
    pub interval: Duration,
    /// The maximum number of requests at once.
    #[serde(deserialize_with = "yaml_number")]
    pub burst: u32,
}

/// The headers that the toolkit allows in a file.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

impl WebConfig {
    /// Reads and checks `path`. Paths inside are taken from its folder, as the toolkit does. Blocks.
    ///
    /// # Errors
    /// If it cannot be read or used.
    pub fn read(path: &Path) -> Result<Self, WebConfigError> {
        let text = read_text(path)?;
        let mut config = Self::parse(path, &text)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        if let Some(tls) = &mut config.tls_server_config {
            for file in [&mut tls.cert_file, &mut tls.key_file, &mut tls.client_ca_file] {
                if !file.as_os_str().is_empty() {
                    *file = folder.join(&*file);
                }
            }
        }
        Ok(config)
    }

    /// Parses and checks the text of `path`.
    ///
    /// # Errors
    /// If it is not of this format, or holds a value that cannot be used.
    pub fn parse(path: &Path, text: &str) -> Result<Self, WebConfigError> {
        let refused = |reason| WebConfigError::Format { path: path.to_owned(), reason };
        let value = yaml::parse(text).map_err(|error| refused(error.to_string()))?;
        // An empty file is an empty configuration.
        if let Some(value) = &value {
            shape::check(value).map_err(&refused)?;
        }
        let config = value.map_or_else(|| Ok(Self::default()), serde_json::from_value);
        let config = config.map_err(|error| refused(error.to_string()))?;
        config.check_users()?;
        for name in config.http_server_config.headers.keys() {
            if !HEADERS.contains(&name.as_str()) {
                let reason = format!("`{name}` is not one of {}", HEADERS.join(", "));
                return Err(WebConfigError::Value { key: "http_server_config.headers", reason });
            }
        }
        if config.rate_limit.is_some_and(|limit| limit.burst == 0) {
            let reason = "0 would refuse every request".to_owned();
            return Err(WebConfigError::Value { key: "rate_limit.burst", reason });
        }
        Ok(config)
    }

    fn check_users(&self) -> Result<(), WebConfigError> {
        for (user, hash) in &self.basic_auth_users {
            let refused = |reason: String| WebConfigError::Value { key: "basic_auth_users", reason };
            let user = user.escape_debug();
            let parts: bcrypt::HashParts =
                hash.parse().map_err(|_| refused(format!("the hash of `{user}` is not a bcrypt hash")))?;
            let cost = parts.get_cost();
            if cost > MAX_BCRYPT_COST {
                return Err(refused(format!(
                    "the hash of `{user}` has cost {cost}: at most {MAX_BCRYPT_COST}, each check would take seconds"
                )));
            }
        }
        Ok(())
    }
}

/// The text of a file of at most [`MAX_FILE_BYTES`].
pub(super) fn read_text(path: &Path) -> Result<String, WebConfigError> {
    let unreadable = |source| WebConfigError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let file = regular_file::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(WebConfigError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

/// `true` or `false` in a YAML text.
fn yaml_bool<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "true" | "True" | "TRUE" => Ok(Some(true)),
        "false" | "False" | "FALSE" => Ok(Some(false)),
        other => Err(serde::de::Error::custom(format_args!("expected true or false, got `{other}`"))),
    }
}

/// A number in a YAML text.
fn yaml_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| serde::de::Error::custom(format_args!("expected a whole number, got `{text}`")))
}

/// A duration as Go writes it: `1s`, `500ms`, `1m30s`.
fn go_duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_go_duration(&text).ok_or_else(|| {
        serde::de::Error::custom(format_args!("expected a duration such as `1s`, got `{text}`"))
    })
}

fn parse_go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| end + at);
        let seconds = match &rest[end..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<WebConfig, String> {
        WebConfig::parse(Path::new("web.yml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_toolkits_example_is_read() {
        let config = parse(
            "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_auth_type: \
             RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: [prometheus.example]\n  \
             min_version: TLS12\nhttp_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n\
             basic_auth_users:\n  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze\n\
             rate_limit:\n  interval: 1m30s\n  burst: 20\n",
        )
        .unwrap();
        assert_eq!(config.tls_server_config.unwrap().client_allowed_sans, ["prometheus.example"]);
        assert_eq!(config.rate_limit.unwrap().interval, Duration::from_secs(90));
        assert_eq!(config.basic_auth_users.len(), 1);
    }

    #[test]
    fn an_empty_file_is_an_empty_configuration() {
        for text in ["", "tls_server_config:\n", "---\nbasic_auth_users: ~\n"] {
            let config = parse(text).unwrap();
            assert!(config.tls_server_config.is_none() && config.basic_auth_users.is_empty());
        }
    }

    #[test]
    fn a_number_may_be_a_text() {
        let config = parse("http_server_config: {headers: {X-XSS-Protection: 0}, http2: False}").unwrap();
        assert_eq!(config.http_server_config.headers["X-XSS-Protection"], "0");
        assert_eq!(config.http_server_config.http2, Some(false));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        assert!(parse("tls_server_confg: {}").unwrap_err().contains("tls_server_confg"));
        assert!(parse("basic_auth_users: {bob: secret}").unwrap_err().contains("`bob` is not a bcrypt hash"));
        let costly = "basic_auth_users: {bob: $2y$31$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze}";
        assert!(parse(costly).unwrap_err().contains("cost 31"));
        assert!(
            parse("http_server_config: {headers: {Set-Cookie: x}}").unwrap_err().contains("`Set-Cookie`")
        );
        assert!(parse("rate_limit: {interval: fast, burst: 1}").unwrap_err().contains("`fast`"));
        assert!(parse("rate_limit: {interval: 1s, burst: 0}").unwrap_err().contains("burst"));
        assert!(parse("rate_limit: {interval: 1s, burst: -1}").unwrap_err().contains("`-1`"));
        assert!(parse("http_server_config: {http2: maybe}").unwrap_err().contains("`maybe`"));
        assert!(
            parse("[1, 2").is_err() && parse("&a [*a]").is_err() && parse("tls_server_config: 1").is_err()
        );
    }

    #[test]
    fn what_is_not_a_mapping_is_refused_at_every_level() {
        for (text, fault) in [
            (
                "[]",
                "expected a mapping with tls_server_config, http_server_config, basic_auth_users or rate_limit, got a list",
            ),
            ("nonsense", "basic_auth_users or rate_limit, got a text"),
            ("tls_server_config: []", "tls_server_config: expected a mapping, got a list"),
            ("tls_server_config: [a.crt]", "tls_server_config: expected a mapping, got a list"),
            ("tls_server_config: 1", "tls_server_config: expected a mapping, got a text"),
            (
                "tls_server_config: {cert_file: [a]}",
                "tls_server_config.cert_file: expected a text, got a list",
            ),
            (
                "tls_server_config: {cipher_suites: a}",
                "tls_server_config.cipher_suites: expected a list, got a text",
            ),
            (
                "tls_server_config: {cipher_suites: [{a: b}]}",
                "tls_server_config.cipher_suites: expected a text, got a mapping",
            ),
            ("http_server_config: [true]", "http_server_config: expected a mapping, got a list"),
            (
                "http_server_config: {headers: []}",
                "http_server_config.headers: expected a mapping, got a list",
            ),
            (
                "http_server_config: {headers: {X-Frame-Options: [deny]}}",
                "http_server_config.headers.X-Frame-Options: expected a text, got a list",
            ),
            ("basic_auth_users: [a]", "basic_auth_users: expected a mapping, got a list"),
            ("rate_limit: [1s, 5]", "rate_limit: expected a mapping, got a list"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.ends_with(fault), "{text}: {error}");
        }
    }

    #[test]
    fn paths_are_taken_from_the_files_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        std::fs::write(&file, "tls_server_config: {cert_file: a.crt, key_file: /b.key}").unwrap();
        let tls = WebConfig::read(&file).unwrap().tls_server_config.unwrap();
        assert_eq!(tls.cert_file, folder.path().join("a.crt"));
        assert_eq!(tls.key_file, Path::new("/b.key"));
        assert!(matches!(
            WebConfig::read(&folder.path().join("none.yml")),
            Err(WebConfigError::Unreadable { .. })
        ));
    }
}
