//! `tpuscope mcp`: a server of the Model Context Protocol on standard input and output, whose tools read what the agent's
//! socket gives the caller.
//!
//! ```text
//! a line of input ──▶ message ──▶ tool and its checked arguments ──▶ a command of this program ──▶ a line of output
//! ```
//!
//! Each call of a tool is a process of its own, so that a caller can end it and a deadline is kept whatever it waits for. Must
//! never change anything, take a path or a URL as an argument, or print more than a bounded text.

mod arguments;
mod call;
mod input;
mod message;
mod tools;

use std::ffi::OsString;

use serde_json::{Value, json};
use tokio::task::{self, AbortHandle, JoinError, JoinSet};

use self::{
    arguments::ToolArguments,
    call::{MAX_OUTPUT, ToolFailure},
    input::InputLine,
    message::{McpMessage, RpcError, VersionForm},
    tools::McpTool,
};
use super::{CommandResult, client, exit::Exit, failure::Failure, output};

/// Calls that may run at a time.
const MAX_CALLS: usize = 8;
/// What a client tells its model of this server.
const INSTRUCTIONS: &str = "Measurements of the TPU chips of this host, the jobs on it, where the time of jobs went, and recorded \
     XProf sessions. All tools only read. Begin with `status`; `goodput_explain` says what a job lost its time to; `sessions` \
     lists what `show` and `diff` take.";

/// Arguments of `mcp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let socket = args.agent.words();
    client::block_on(async move { McpServer::new(socket).serve().await })?;
    Ok(Exit::Ok)
}

/// The server of one client.
struct McpServer {
    /// What each command needs to call the same agent.
    socket: Vec<OsString>,
    /// The calls that run; each gives its answer.
    calls: JoinSet<Value>,
    /// Their ids.
    running: Vec<(Value, AbortHandle)>,
}

impl McpServer {
    fn new(socket: Vec<OsString>) -> Self {
        Self { socket, calls: JoinSet::new(), running: Vec::new() }
    }

    /// Answers until the input ends and all calls are answered, or nobody reads any more.
    async fn serve(mut self) -> Result<(), Failure> {
        let mut lines = input::lines()?;
        let mut has_input = true;
        while has_input || !self.calls.is_empty() {
            let answer = tokio::select! {
                line = lines.recv(), if has_input => match line {
                    Some(line) => self.answer(line),
                    None => {
                        has_input = false;
                        None
                    }
                },
                Some(ended) = self.calls.join_next_with_id() => self.ended(ended),
            };
            if let Some(answer) = answer
                && !output::print_more(&format!("{answer}\n"))?
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The answer to a call that ended. One that was cancelled has none.
    fn ended(&mut self, ended: Result<(task::Id, Value), JoinError>) -> Option<Value> {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        let at = self.running.iter().position(|(_, call)| call.id() == task)?;
        let (id, _) = self.running.swap_remove(at);
        match ended {
            Ok((_, answer)) => Some(answer),
            Err(error) => error.is_panic().then(|| RpcError::internal().answer(&id)),
        }
    }

    /// The answer to a line; none if it wants none, or it comes later.
    fn answer(&mut self, line: InputLine) -> Option<Value> {
        let message = match McpMessage::of(line) {
            Ok(message) => message,
            Err(error) => return Some(error.answer(&Value::Null)),
        };
        let Some(id) = message.id.clone() else {
            self.notified(&message.method, &message.params);
            return None;
        };
        match self.result(&id, &message) {
            Ok(answer) => answer,
            Err(error) => Some(error.answer(&id)),
        }
    }

    /// The answer to a request; none if it comes later.
    fn result(&mut self, id: &Value, message: &McpMessage) -> Result<Option<Value>, RpcError> {
        let form = VersionForm::of(&message.params)?;
        let result = match message.method.as_str() {
            "initialize" => message::initialized(&message.params, &instructions()),
            "server/discover" => message::discovered(&instructions()),
            "ping" => json!({}),
            "tools/list" => {
                form.kept(json!({ "tools": tools::TOOLS.iter().map(McpTool::listed).collect::<Vec<_>>() }))
            }
            "tools/call" => match self.call(id, &message.params, form)? {
                Some(refused) => refused.result(),
                None => return Ok(None),
            },
            other => return Err(RpcError::unknown_method(other)),
        };
        Ok(Some(form.answer(id, result)))
    }

    fn notified(&mut self, method: &str, params: &Value) {
        if method == "notifications/cancelled" {
            let id = &params["requestId"];
            self.running.iter().filter(|(running, _)| running == id).for_each(|(_, call)| call.abort());
        }
    }

    /// Starts the call of a tool, or says why it cannot be started.
    fn call(
        &mut self,
        id: &Value,
        params: &Value,
        form: VersionForm,
    ) -> Result<Option<ToolFailure>, RpcError> {
        let Some(name) = params["name"].as_str() else {
            return Err(RpcError::invalid_params("params.name: expected the name of a tool"));
        };
        let Some(tool) = tools::TOOLS.iter().find(|tool| tool.name == name) else {
            return Err(RpcError::unknown_tool(name));
        };
        if self.running.len() >= MAX_CALLS {
            return Ok(Some(ToolFailure::too_many(MAX_CALLS)));
        }
        let words = match ToolArguments::of(tool.arguments, &params["arguments"]) {
            Ok(arguments) => tool.words(&arguments),
            Err(error) => return Ok(Some(ToolFailure::of_arguments(tool.name, &error))),
        };
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let (limit, answered, socket) = (tool.limit, id.clone(), self.socket.clone());
        let call = self.calls.spawn(async move {
            let ended = call::run(&words, &socket, limit).await;
            form.answer(&answered, ended.map_or_else(|failure| failure.result(), |text| text.result()))
        });
        self.running.push((id.clone(), call));
        Ok(None)
    }
}

fn instructions() -> String {
    format!("{INSTRUCTIONS} A text ends after {} KiB, and says so.", MAX_OUTPUT >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> McpServer {
        McpServer::new(Vec::new())
    }

    fn answer(server: &mut McpServer, message: &Value) -> Option<Value> {
        server.answer(InputLine::Line(message.to_string().into_bytes()))
    }

    #[test]
    fn a_version_that_is_not_spoken_is_answered_with_one_that_is() {
        for (wanted, given) in [
            ("2025-06-18", "2025-06-18"),
            ("2025-03-26", "2025-11-25"),
            ("2099-01-01", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize",
                "params": { "protocolVersion": wanted, "capabilities": {}, "clientInfo": {} } });
            let answer = answer(&mut server(), &request).unwrap();
            assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(1), &json!(given)));
            assert_eq!(answer["result"].get("resultType"), None);
        }
        let named = |version: &str| {
            let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list",
                "params": { "_meta": { "io.modelcontextprotocol/protocolVersion": version } } });
            answer(&mut server(), &request).unwrap()
        };
        assert_eq!(named("2026-07-28")["result"]["resultType"], "complete");
        let error = &named("2099-01-01")["error"];
        assert_eq!((&error["code"], &error["data"]["supported"]), (&json!(-32022), &json!(["2026-07-28"])));
    }

    #[test]
    fn what_is_wrong_has_an_answer_and_a_notification_none() {
        let mut server = server();
        for (request, code) in [
            (json!({ "jsonrpc": "2.0", "id": "a", "method": "resources/list" }), -32601),
            (json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {} }), -32602),
            (
                json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "capture" } }),
                -32602,
            ),
            (json!({ "jsonrpc": "2.0", "id": [], "method": "ping" }), -32600),
            (json!([]), -32600),
        ] {
            let answer = answer(&mut server, &request).unwrap();
            assert_eq!(answer["error"]["code"], code, "{answer}");
        }
        for line in [InputLine::Line(b"{".to_vec()), InputLine::TooLong] {
            assert_eq!(server.answer(line).unwrap()["id"], Value::Null);
        }
        for notification in ["notifications/initialized", "notifications/cancelled", "unknown"] {
            let message = json!({ "jsonrpc": "2.0", "method": notification, "params": { "requestId": 3 } });
            assert_eq!(answer(&mut server, &message), None);
        }
    }

    #[test]
    fn wrong_arguments_are_a_failure_of_the_tool_with_what_to_do() {
        let call = |arguments: Value| {
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": { "name": "show", "arguments": arguments } })
        };
        for bad in [json!({}), json!({ "session": 1 }), json!({ "session": "../x" }), json!([])] {
            let answer = answer(&mut server(), &call(bad)).unwrap();
            let result = &answer["result"];
            assert_eq!(result["isError"], true, "{answer}");
            assert_eq!(result["structuredContent"]["error"]["exit_code"], 2, "{answer}");
            assert!(
                result["structuredContent"]["error"]["remedy"].as_str().unwrap().contains("show"),
                "{answer}"
            );
        }
    }
}
