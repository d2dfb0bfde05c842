//! The messages of JSON-RPC 2.0, as far as the protocol uses them, and its two ways to name a version: once at the start, or
//! in each request. Pure.

use model::untrusted::clean;
use serde_json::{Value, json};

use super::tools::TOOLS;

/// The versions that are agreed on once, by `initialize`; the newest first.
const AGREED_VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2024-11-05"];
/// The version that each request names for itself.
pub(super) const NAMED_VERSION: &str = "2026-07-28";
/// Where a request names it, and where an answer names this program.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const SERVER_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// How long the list of tools may be kept: it does not change while this program runs.
const KEEP_LIST_MS: u32 = 3_600_000;
/// Characters of a name that an error repeats.
const SHOWN: usize = 60;

/// A request, or a notification, which has no id.
#[derive(Debug)]
pub(super) struct McpMessage {
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// Why there is no result: an error of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    code: i32,
    message: String,
    data: Option<Value>,
}

/// How a request names the version, which decides what its answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionForm {
    /// Once, at the start.
    Agreed,
    /// In itself.
    Named,
}

impl VersionForm {
    /// That of a request with these parameters.
    pub(super) fn of(params: &Value) -> Result<Self, RpcError> {
        match params["_meta"].get(VERSION_KEY) {
            None => Ok(Self::Agreed),
            Some(version) if version == NAMED_VERSION => Ok(Self::Named),
            Some(version) => Err(RpcError::unsupported_version(version)),
        }
    }

    /// The answer to the request with this id.
    pub(super) fn answer(self, id: &Value, mut result: Value) -> Value {
        if self == Self::Named {
            result["resultType"] = "complete".into();
        }
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }

    /// A result that may be kept for a while.
    pub(super) fn kept(self, mut result: Value) -> Value {
        if self == Self::Named {
            result["ttlMs"] = KEEP_LIST_MS.into();
            result["cacheScope"] = "private".into();
        }
        result
    }
}

/// The result of `initialize`: a version that is not spoken is answered with the newest.
pub(super) fn initialized(params: &Value, instructions: &str) -> Value {
    let wanted = params["protocolVersion"].as_str();
    let version = AGREED_VERSIONS.into_iter().find(|version| Some(*version) == wanted);
    json!({
        "protocolVersion": version.unwrap_or(AGREED_VERSIONS[0]),
        "capabilities": capabilities(),
        "serverInfo": server(),
        "instructions": instructions,
    })
}

/// The result of `server/discover`.
pub(super) fn discovered(instructions: &str) -> Value {
    VersionForm::Named.kept(json!({
        "supportedVersions": [NAMED_VERSION],
        "capabilities": capabilities(),
        "instructions": instructions,
        "_meta": { SERVER_KEY: server() },
    }))
}

fn capabilities() -> Value {
    json!({ "tools": {} })
}

fn server() -> Value {
    json!({ "name": "tpuscope", "version": env!("CARGO_PKG_VERSION") })
}

impl McpMessage {
    /// The message in a line.
    pub(super) fn of(line: &[u8]) -> Result<Self, RpcError> {
        let message: Value = serde_json::from_slice(line)
            .map_err(|error| RpcError::new(-32700, &format!("the line is not JSON: {error}")))?;
        let Value::Object(mut message) = message else {
            return Err(RpcError::new(-32600, "expected one JSON object a line"));
        };
        let id = message.remove("id");
        if !matches!(id, None | Some(Value::String(_) | Value::Number(_))) {
            return Err(RpcError::new(-32600, "id: expected a text or a number"));
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            // An answer to a request: this side makes none.
            None if message.contains_key("result") || message.contains_key("error") => {
                return Ok(Self { id: None, method: String::new(), params: Value::Null });
            }
            _ => return Err(RpcError::new(-32600, "method: expected a text")),
        };
        Ok(Self { id, method, params: message.remove("params").unwrap_or_default() })
    }
}

impl RpcError {
    fn new(code: i32, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: None }
    }

    pub(super) fn too_long() -> Self {
        Self::new(-32600, "the line is longer than 1 MiB")
    }

    fn unsupported_version(version: &Value) -> Self {
        let requested = clean(version.as_str().unwrap_or_default(), SHOWN);
        let data = json!({ "supported": [NAMED_VERSION], "requested": requested });
        let message = format!("version {requested} of the protocol is not spoken: expected {NAMED_VERSION}");
        Self { data: Some(data), ..Self::new(-32022, &message) }
    }

    pub(super) fn invalid_params(message: &str) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        let method = clean(method, SHOWN);
        Self::new(-32601, &format!("unknown method {method}: this server has tools/list and tools/call"))
    }

    pub(super) fn unknown_tool(name: &str) -> Self {
        let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        let name = clean(name, SHOWN);
        Self::invalid_params(&format!("unknown tool {name}: expected one of {}", names.join(", ")))
    }

    pub(super) fn internal() -> Self {
        Self::new(-32603, "the call failed: a fault of tpuscope")
    }

    /// The answer to the request with this id.
    pub(super) fn answer(&self, id: &Value) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }
}
