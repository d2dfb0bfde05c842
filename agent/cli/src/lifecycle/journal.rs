//! The journal as the output of the log. The text of an entry has the fields too, because `journalctl` shows only the
//! text; beside it each field is a field of the journal (`F_<NAME>`).
//!
//! Must never wait long for the journal: an entry that it does not take is lost.

use std::{fmt, fmt::Write, io, os::unix::net::UnixDatagram, path::PathBuf, time::Duration};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::output::one_line;

/// The socket of the journal's native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest wait for the journal.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// The most bytes of one value. A datagram has room for several of them.
const MAX_VALUE: usize = 8 << 10;
/// The most bytes of one entry.
const MAX_ENTRY: usize = 64 << 10;

/// Sends each event to the journal.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal of this host.
    ///
    /// # Errors
    /// If no journal listens.
    pub(super) fn connect() -> io::Result<Self> {
        Self::at(PathBuf::from(SOCKET))
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        // The journal ignores an empty entry.
        socket.send_to(&[], &path)?;
        Ok(Self { socket, path })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // An entry that the journal does not take is lost: there is nowhere to report it.
        let _ = self.socket.send_to(&entry(event), &self.path);
    }
}

/// The entry of an event. Its text is one line: a value may quote a peer.
fn entry(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut fields = Fields::default();
    event.record(&mut fields);
    let mut text = one_line(&fields.message);
    for (name, value) in &fields.others {
        // Writing to a String cannot fail.
        let _ = write!(text, " {name}={}", one_line(value));
    }
    let mut bytes = Vec::new();
    put(&mut bytes, "PRIORITY", priority(*metadata.level()));
    put(&mut bytes, "SYSLOG_IDENTIFIER", "tpuscope");
    put(&mut bytes, "TARGET", metadata.target());
    put(&mut bytes, "MESSAGE", text.trim_start());
    for (name, value) in &fields.others {
        if bytes.len() + value.len().min(MAX_VALUE) < MAX_ENTRY {
            put(&mut bytes, &format!("F_{}", name.replace('.', "_").to_uppercase()), value);
        }
    }
    bytes
}

/// The syslog levels of the same names.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// Adds a field with its length, so that the value can have line breaks.
fn put(bytes: &mut Vec<u8>, name: &str, value: &str) {
    let mut end = value.len().min(MAX_VALUE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let value = &value[..end];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(b'\n');
    bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

/// The message and the fields of an event as text.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.others.push((field.name(), value));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The fields of an entry.
    fn parsed(mut bytes: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let name = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            let (length, rest) = bytes[name + 1..].split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            fields.push((text(&bytes[..name]), text(value)));
            bytes = rest.strip_prefix(b"\n").unwrap();
        }
        fields
    }

    #[test]
    fn the_text_has_the_fields_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journal::at(path).unwrap());
        let mut buffer = vec![0; 1 << 17];
        assert_eq!(journal.recv(&mut buffer).unwrap(), 0);
        let long = "ä".repeat(MAX_VALUE);
        tracing::subscriber::with_default(subscriber, || {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9012));
            tracing::warn!(%address, session = "a\nb", "capture {}", "failed");
            tracing::info!(long, "cut");
        });
        let mut received = || {
            let length = journal.recv(&mut buffer).unwrap();
            parsed(&buffer[..length])
        };
        let first = received();
        let value = |fields: &[(String, String)], name: &str| {
            let found = fields.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).unwrap_or_else(|| panic!("{name} is not in {fields:?}"))
        };
        assert_eq!(value(&first, "MESSAGE"), "capture failed address=127.0.0.1:9012 session=a\\nb");
        assert_eq!(value(&first, "F_ADDRESS"), "127.0.0.1:9012");
        assert_eq!(value(&first, "F_SESSION"), "a\nb");
        assert_eq!(value(&first, "PRIORITY"), "4");
        let second = received();
        assert!(value(&second, "MESSAGE").starts_with("cut long=ä"));
        assert_eq!(value(&second, "F_LONG").len(), MAX_VALUE);
    }
}
