//! Section `[export.otlp]`.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, time};

use documented::{Documented, DocumentedFields};
use http::Uri;
use model::{absolute_path, unit::Duration};
use serde::{Deserialize, Serialize};

/// Metrics to a collector of OpenTelemetry (OTLP over gRPC): all series of the metrics page, at an interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpSettings {
    /// URL of the collector, such as "https://collector.example:4317", or "off". With http:// it must be on this host:
    /// "http://127.0.0.1:4317". The default port is 4317.
    pub endpoint: OtlpEndpoint,
    /// Time between two exports.
    pub interval: Duration,
    /// Time that the collector has to answer one message, connecting included. A message has at most 512 KiB, and an export as
    /// many as it needs: one up to about 2,000 series.
    pub timeout: Duration,
    /// File with headers for the collector, one `name: value` a line, such as `authorization: Bearer …`. Its mode must keep
    /// other users from reading it. The agent reads it again after each failure. Empty: no headers.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub headers_file: PathBuf,
    /// Certificates of the authorities that sign the certificate of the collector, PEM. Empty: those that the host trusts.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub ca: PathBuf,
    /// Certificate of this agent for the collector, PEM. Empty: none.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub cert: PathBuf,
    /// Private key of the certificate, PEM. Its mode must keep other users from reading it.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub key: PathBuf,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: OtlpEndpoint(None),
            interval: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            headers_file: PathBuf::new(),
            ca: PathBuf::new(),
            cert: PathBuf::new(),
            key: PathBuf::new(),
        }
    }
}

/// The shortest and the longest time between two exports.
const INTERVALS: [time::Duration; 2] = [time::Duration::from_secs(1), time::Duration::from_secs(3600)];
/// The shortest and the longest time that a collector has to answer.
const TIMEOUTS: [time::Duration; 2] = [time::Duration::from_millis(100), time::Duration::from_secs(300)];

impl OtlpSettings {
    /// The rules between its values, each broken one with its settings and a message.
    pub fn broken_rules(&self) -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
        let [cert, key, ca] = [&self.cert, &self.key, &self.ca].map(|path| !path.as_os_str().is_empty());
        let within =
            |range: [time::Duration; 2], value: Duration| (range[0]..=range[1]).contains(&value.get());
        let plain = self.endpoint.0.as_ref().is_some_and(|url| !url.tls);
        let rules: [(bool, &'static [&'static str], &'static str); 4] = [
            (
                !within(INTERVALS, self.interval),
                &["export.otlp.interval"],
                "export.otlp.interval is out of its range: expected 1s to 1h",
            ),
            (
                !within(TIMEOUTS, self.timeout),
                &["export.otlp.timeout"],
                "export.otlp.timeout is out of its range: expected 100ms to 5m",
            ),
            (
                cert != key,
                &["export.otlp.cert", "export.otlp.key"],
                "only one of export.otlp.cert and export.otlp.key is set: expected both or none",
            ),
            (
                plain && (cert || key || ca),
                &["export.otlp.endpoint", "export.otlp.ca", "export.otlp.cert", "export.otlp.key"],
                "export.otlp.endpoint has no TLS, and a certificate is set: expected an endpoint with https://",
            ),
        ];
        rules.into_iter().filter(|(broken, ..)| *broken).map(|(_, settings, message)| (settings, message))
    }
}

/// Where the collector is, if exports are on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OtlpEndpoint(Option<CollectorUrl>);

/// The URL of a collector: no path, no user, and TLS unless it is on the loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl {
    tls: bool,
    /// With its port.
    uri: Uri,
}

/// The port of OTLP over gRPC.
const DEFAULT_PORT: u16 = 4317;

/// Why the URL of a collector is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtlpEndpointError {
    /// The text is no such URL.
    #[error("expected https://HOST:PORT, http://127.0.0.1:PORT or `off`, got `{0}`")]
    Form(String),
    /// It has a user or a password.
    #[error("expected a URL without user and password: headers for the collector are in `headers_file`")]
    User,
    /// It has a path.
    #[error(
        "expected a URL without a path, got `{0}`: gRPC has its own (a path is for OTLP over HTTP, port 4318)"
    )]
    Path(String),
    /// It has no TLS and is on another host.
    #[error(
        "expected https:// for a collector on another host, got `{0}`: without TLS others could read the metrics"
    )]
    Plain(String),
}

impl OtlpEndpoint {
    /// The collector. `None` for `off`.
    pub fn url(&self) -> Option<&CollectorUrl> {
        self.0.as_ref()
    }
}

impl CollectorUrl {
    /// Whether it has TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The URL, which has a port.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl FromStr for CollectorUrl {
    type Err = OtlpEndpointError;

    fn from_str(text: &str) -> Result<Self, OtlpEndpointError> {
        // Not shown: the password may be right.
        if text.contains('@') {
            return Err(OtlpEndpointError::User);
        }
        let shown = || text.chars().take(60).collect();
        let url: Uri = text.parse().map_err(|_| OtlpEndpointError::Form(shown()))?;
        let tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(OtlpEndpointError::Form(shown())),
        };
        let Some(authority) = url.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(OtlpEndpointError::Form(shown()));
        };
        let host = authority.host().to_owned();
        let port = match authority.as_str()[host.len()..].strip_prefix(':') {
            None => DEFAULT_PORT,
            Some(port) => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| OtlpEndpointError::Form(shown()))?
            }
        };
        if !["", "/"].contains(&url.path()) || url.query().is_some() {
            return Err(OtlpEndpointError::Path(shown()));
        }
        let is_loopback = host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.to_canonical().is_loopback());
        if !tls && !is_loopback {
            return Err(OtlpEndpointError::Plain(shown()));
        }
        let scheme = if tls { "https" } else { "http" };
        let uri =
            format!("{scheme}://{host}:{port}").parse().map_err(|_| OtlpEndpointError::Form(shown()))?;
        Ok(Self { tls, uri })
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the path, which is empty.
        f.write_str(self.uri.to_string().trim_end_matches('/'))
    }
}

impl TryFrom<String> for OtlpEndpoint {
    type Error = OtlpEndpointError;

    fn try_from(text: String) -> Result<Self, OtlpEndpointError> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(Some).map(Self) }
    }
}

impl From<OtlpEndpoint> for String {
    fn from(endpoint: OtlpEndpoint) -> Self {
        endpoint.0.map_or_else(|| "off".to_owned(), |url| url.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, OtlpEndpointError> {
        OtlpEndpoint::try_from(text.to_owned()).map(String::from)
    }

    #[test]
    fn a_collector_elsewhere_needs_tls() {
        for (url, whole) in [
            ("off", "off"),
            ("https://c.example", "https://c.example:4317"),
            ("https://c.example:443/", "https://c.example:443"),
            ("https://[2001:db8::1]:4317", "https://[2001:db8::1]:4317"),
            ("http://localhost:4317", "http://localhost:4317"),
            ("http://127.0.0.9", "http://127.0.0.9:4317"),
            ("http://[::1]:9", "http://[::1]:9"),
        ] {
            assert_eq!(shown(url).as_deref(), Ok(whole), "{url}");
        }
        for plain in
            ["http://10.0.0.1:4317", "http://c.example", "http://127.0.0.1.example:4317", "http://0.0.0.0:1"]
        {
            assert!(matches!(shown(plain), Err(OtlpEndpointError::Plain(_))), "{plain}");
        }
    }

    #[test]
    fn what_is_no_url_of_a_collector_is_refused() {
        for bad in [
            "",
            "Off",
            "c.example:4317",
            "grpc://c:1",
            "https://",
            "https://:1",
            "https://c:x",
            "https://c:0",
            "https://c:99999",
            "https://c d",
        ] {
            assert!(matches!(shown(bad), Err(OtlpEndpointError::Form(_))), "{bad} {:?}", shown(bad));
        }
        for path in ["https://c.example/v1/metrics", "http://127.0.0.1:4318/v1/metrics", "https://c/?token=x"]
        {
            assert!(matches!(shown(path), Err(OtlpEndpointError::Path(_))), "{path}");
        }
        let user = shown("https://ada:secret@c.example").unwrap_err();
        assert!(user == OtlpEndpointError::User && !user.to_string().contains("secret"), "{user}");
    }

    #[test]
    fn settings_that_cannot_work_together_are_named() {
        let broken = |change: fn(&mut OtlpSettings)| {
            let mut settings = OtlpSettings {
                endpoint: OtlpEndpoint(Some("http://127.0.0.1:1".parse().unwrap())),
                ..OtlpSettings::default()
            };
            change(&mut settings);
            settings.broken_rules().map(|(settings, _)| settings[0]).collect::<Vec<_>>()
        };
        assert!(broken(|_| ()).is_empty());
        assert_eq!(
            broken(|settings| settings.interval = Duration::from_millis(999)),
            ["export.otlp.interval"]
        );
        assert_eq!(broken(|settings| settings.timeout = Duration::from_secs(301)), ["export.otlp.timeout"]);
        assert_eq!(broken(|settings| settings.ca = "/ca".into()), ["export.otlp.endpoint"]);
        let one = broken(|settings| {
            settings.endpoint = OtlpEndpoint(Some("https://c".parse().unwrap()));
            settings.key = "/key".into();
        });
        assert_eq!(one, ["export.otlp.cert"]);
    }
}
