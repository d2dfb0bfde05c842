//! The metadata server of a virtual machine, with the rules that clients meet: the required header, directories,
//! JSON of whole trees, waiting for changes, and tokens.

use std::{collections::BTreeMap, time::Instant};

use hyper::http::request::Parts;
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{Duration, timeout},
};

use super::{Shared, access::ACCOUNT, lock, replies::GcsReply};

/// Below this all paths lie.
pub(super) const ROOT: &str = "/computeMetadata/v1/";

const ACCOUNTS: &str = "instance/service-accounts/";

/// Its values by their paths.
pub(super) struct MetadataServer {
    values: BTreeMap<String, String>,
    changed: watch::Sender<()>,
}

impl Default for MetadataServer {
    fn default() -> Self {
        let mut values = BTreeMap::new();
        for account in ["default", ACCOUNT] {
            for (key, value) in [
                ("aliases", "default"),
                ("email", ACCOUNT),
                ("scopes", "https://www.googleapis.com/auth/cloud-platform"),
            ] {
                values.insert(format!("{ACCOUNTS}{account}/{key}"), value.to_owned());
            }
        }
        for (key, value) in [
            ("instance/id", "4242424242424242424"),
            ("instance/name", "t1v-n-0a1b2c3d-w-0"),
            ("instance/hostname", "t1v-n-0a1b2c3d-w-0.us-central2-b.c.project.internal"),
            ("instance/zone", "projects/424242/zones/us-central2-b"),
            ("instance/machine-type", "projects/424242/machineTypes/ct4p-hightpu-4t"),
            ("instance/maintenance-event", "NONE"),
            ("instance/preempted", "FALSE"),
            ("instance/scheduling/preemptible", "FALSE"),
            ("instance/attributes/accelerator-type", "v4-8"),
            ("instance/attributes/agent-worker-number", "0"),
            ("instance/attributes/worker-network-endpoints", "unknown:unknown:10.130.0.2"),
            ("project/project-id", "project"),
            ("project/numeric-project-id", "424242"),
        ] {
            values.insert(key.to_owned(), value.to_owned());
        }
        Self { values, changed: watch::Sender::new(()) }
    }
}

impl MetadataServer {
    pub(super) fn set(&mut self, path: &str, value: &str) {
        self.values.insert(path.to_owned(), value.to_owned());
        self.changed.send_replace(());
    }

    /// What `path` holds: its kind and its text.
    fn find(&self, path: &str, recursive: bool) -> Option<(&'static str, String)> {
        if let Some(value) = self.values.get(path) {
            return Some(("application/text", value.clone()));
        }
        let below: Vec<_> =
            self.values.iter().filter_map(|(key, value)| Some((key.strip_prefix(path)?, value))).collect();
        if below.is_empty() || !(path.is_empty() || path.ends_with('/')) {
            return None;
        }
        if recursive {
            return Some(("application/json", tree(&below).to_string()));
        }
        let mut names: Vec<_> = below
            .iter()
            .map(|(rest, _)| {
                rest.split_once('/').map_or((*rest).to_owned(), |(first, _)| format!("{first}/"))
            })
            .collect();
        names.dedup();
        Some(("application/text", names.join("\n") + "\n"))
    }
}

/// JSON of a tree: names in camel case, except those of attributes.
fn tree(values: &[(&str, &String)]) -> Value {
    let mut root = Map::new();
    for (path, value) in values {
        let mut map = &mut root;
        let mut parts = path.split('/').peekable();
        let mut in_attributes = false;
        while let Some(part) = parts.next() {
            let name = if in_attributes || part.contains('@') { part.to_owned() } else { camel_case(part) };
            in_attributes |= part == "attributes";
            if parts.peek().is_none() {
                map.insert(name, Value::String((*value).clone()));
                break;
            }
            let inner = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
            map = inner.as_object_mut().expect("a value has no path below it");
        }
    }
    Value::Object(root)
}

fn camel_case(name: &str) -> String {
    let mut parts = name.split('-');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut name, part| {
        let mut letters = part.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

/// Answers a request below [`ROOT`].
pub(super) async fn answer(state: &Shared, head: &Parts, query: &BTreeMap<String, String>) -> GcsReply {
    let refused = |text: &str| GcsReply::new(403).text("text/html; charset=UTF-8", text);
    let reply = if head.headers.get("metadata-flavor").is_none_or(|flavor| flavor != "Google") {
        refused("Missing Metadata-Flavor:Google header.")
    } else if head.headers.contains_key("x-forwarded-for") {
        refused("Request carries X-Forwarded-For.")
    } else if head.method != "GET" {
        GcsReply::new(405).text("text/html; charset=UTF-8", "Method not allowed.")
    } else {
        let path = head.uri.path().strip_prefix(ROOT).unwrap_or_default();
        match path.strip_prefix(ACCOUNTS).and_then(|rest| rest.strip_suffix("/token")) {
            Some(account) if account == "default" || account == ACCOUNT => token(state),
            _ => value(state, path, query).await,
        }
    };
    reply.header("metadata-flavor", "Google").header("server", "Metadata Server for VM")
}

fn token(state: &Shared) -> GcsReply {
    let (token, life) = lock(state).access.token(Instant::now());
    let text = serde_json::json!({
        "access_token": token,
        "expires_in": life.as_secs(),
        "token_type": "Bearer",
    });
    GcsReply::new(200).text("application/json", text.to_string())
}

/// A value or a directory, at once or when it changes.
async fn value(state: &Shared, path: &str, query: &BTreeMap<String, String>) -> GcsReply {
    let recursive = query.get("recursive").is_some_and(|word| word.eq_ignore_ascii_case("true"));
    let mut waits = query.get("wait_for_change").is_some_and(|word| word.eq_ignore_ascii_case("true"));
    let limit = query.get("timeout_sec").and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let mut changes = lock(state).metadata.changed.subscribe();
    let mut known = query.get("last_etag").cloned();
    loop {
        let found = lock(state).metadata.find(path, recursive);
        let Some((kind, text)) = found else {
            return GcsReply::new(404).text("text/html; charset=UTF-8", "<h1>Not Found</h1>");
        };
        let etag = format!("{:016x}", crc32c::crc32c(text.as_bytes()));
        let last = known.get_or_insert_with(|| etag.clone());
        if !waits || *last != etag {
            return GcsReply::new(200).text(kind, text).header("etag", etag);
        }
        // At the end of its time it gives what is there.
        waits = timeout(Duration::from_secs(limit), changes.changed()).await.is_ok();
    }
}
