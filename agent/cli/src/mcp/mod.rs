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
pub mod line_task;
mod message;
mod tools;

use std::{
    ffi::OsString,
    io::{IsTerminal, stdin},
};

use serde_json::Value;
use tokio::task::{self, AbortHandle, JoinError, JoinSet};

use self::{
    call::ToolFailure,
    input::InputLine,
    line_task::{LineTask, ToolCall},
    message::RpcError,
};
use super::{CommandResult, client, exit::Exit, failure::Failure, output};

/// Calls that may run at a time.
const MAX_CALLS: usize = 8;

/// Arguments of `mcp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    if stdin().is_terminal() {
        // Whoever started it by hand would take it for a command that hangs.
        output::print_error(
            "waiting for lines of JSON from a client of the Model Context Protocol (docs/mcp.md); Ctrl-D ends it",
        );
    }
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
        let InputLine::Line(line) = line else { return Some(RpcError::too_long().answer(&Value::Null)) };
        match LineTask::of(&line) {
            LineTask::Nothing => None,
            LineTask::Answer(answer) => Some(answer),
            LineTask::Cancel(id) => {
                self.running.iter().filter(|(running, _)| *running == id).for_each(|(_, call)| call.abort());
                None
            }
            LineTask::Run(call) if self.running.len() >= MAX_CALLS => {
                Some(call.answer(ToolFailure::too_many(MAX_CALLS).result()))
            }
            LineTask::Run(call) => {
                self.start(call);
                None
            }
        }
    }

    fn start(&mut self, call: ToolCall) {
        let (id, socket) = (call.id().clone(), self.socket.clone());
        let running = self.calls.spawn(async move {
            let words: Vec<OsString> = call.words().iter().map(OsString::from).collect();
            let ended = call::run(&words, &socket, call.limit()).await;
            call.answer(ended.map_or_else(|failure| failure.result(), |text| text.result()))
        });
        self.running.push((id, running));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            for params in [json!({ "requestId": 3 }), json!("text"), json!([3]), Value::Null] {
                let message = json!({ "jsonrpc": "2.0", "method": notification, "params": params });
                assert_eq!(answer(&mut server, &message), None);
            }
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
