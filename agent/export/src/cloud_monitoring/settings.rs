//! Section `[export.cloud_monitoring]`.

use std::{net::IpAddr, path::PathBuf};

use documented::{Documented, DocumentedFields};
use http::Uri;
use model::{absolute_path, unit::Duration};
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The longest text that becomes a label, in bytes.
const MOST_LABEL: usize = 200;

/// Goodput and distributions to Google Cloud Monitoring. Off by default. docs/export.md says which series there are, what
/// they cost and which rights the agent needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct CloudMonitoringSettings {
    /// Whether points are sent.
    pub enabled: bool,
    /// Project that the points are written to. Empty: that of this machine, from its metadata server.
    #[serde(deserialize_with = "project")]
    pub project: String,
    /// Zone or region of the series. Empty: the zone of this machine.
    #[serde(deserialize_with = "label")]
    pub location: String,
    /// Accelerator type of the series, such as "TPU-v6e", or a machine type. Empty: from the machine type of this machine.
    #[serde(deserialize_with = "label")]
    pub accelerator_type: String,
    /// Label cluster_name of the series. Empty: no such label.
    #[serde(deserialize_with = "label")]
    pub cluster_name: String,
    /// Label replica_id of the series.
    #[serde(deserialize_with = "label")]
    pub replica_id: String,
    /// Time between two points of a series.
    pub interval: Duration,
    /// Windows before each point whose goodput is sent too, such as ["10m", "1h"].
    pub rolling_windows: Vec<Duration>,
    /// Whether the distributions of libtpu are sent, as custom metrics, which Google charges for.
    pub distributions: bool,
    /// Key file of a service account. Empty: GOOGLE_APPLICATION_CREDENTIALS, else the account of this machine.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub credentials: PathBuf,
    /// URL of the service; another one for a private endpoint.
    #[serde(deserialize_with = "endpoint")]
    pub endpoint: String,
}

impl Default for CloudMonitoringSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            project: String::new(),
            location: String::new(),
            accelerator_type: String::new(),
            cluster_name: String::new(),
            replica_id: "0".into(),
            interval: Duration::from_secs(60),
            rolling_windows: Vec::new(),
            distributions: false,
            credentials: PathBuf::new(),
            endpoint: "https://monitoring.googleapis.com".into(),
        }
    }
}

/// It becomes a part of a URL.
fn project<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    if text.len() <= 100 && text.chars().all(allowed) {
        return Ok(text);
    }
    let shown: String = text.chars().take(100).flat_map(char::escape_debug).collect();
    Err(D::Error::custom(format_args!("expected the id of a project, such as `my-project`, got `{shown}`")))
}

fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() <= MOST_LABEL && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    Err(D::Error::custom(format_args!(
        "expected a text of at most {MOST_LABEL} bytes without control characters"
    )))
}

/// A token must not leave this host in plain text.
fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || {
        let shown: String = text.chars().take(100).flat_map(char::escape_debug).collect();
        D::Error::custom(format_args!(
            "expected https://HOST[:PORT], or http://HOST:PORT on the loopback, got `{shown}`"
        ))
    };
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let is_safe = match uri.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_loopback,
        _ => false,
    };
    if is_safe && uri.path() == "/" && uri.query().is_none() {
        return Ok(text.trim_end_matches('/').to_owned());
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CloudMonitoringSettings, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_never_leaves_the_host_in_plain_text() {
        for good in [
            "https://monitoring.googleapis.com",
            "https://10.0.0.1:8443/",
            "http://127.0.0.1:9",
            "http://[::1]:9",
        ] {
            let settings = read(&format!(r#"{{"endpoint": "{good}"}}"#)).unwrap();
            assert_eq!(settings.endpoint, good.trim_end_matches('/'));
        }
        for bad in [
            "http://10.0.0.1",
            "http://127.0.0.1.example",
            "ftp://a",
            "monitoring.googleapis.com",
            "https://a/b",
            "",
        ] {
            let error = read(&format!(r#"{{"endpoint": "{bad}"}}"#)).unwrap_err();
            assert!(error.contains("expected https://HOST[:PORT]"), "{bad}: {error}");
        }
    }

    #[test]
    fn what_becomes_a_url_or_a_label_is_checked() {
        assert!(read(r#"{"project": "example.com:my-project-1"}"#).is_ok());
        for bad in ["../x", "a/b", "A", "a b", "a?b"] {
            assert!(read(&format!(r#"{{"project": "{bad}"}}"#)).unwrap_err().contains("the id of a project"));
        }
        assert!(read(r#"{"location": "a\nb"}"#).unwrap_err().contains("without control characters"));
        assert!(read(r#"{"credentials": "key.json"}"#).unwrap_err().contains("absolute path"));
    }
}
