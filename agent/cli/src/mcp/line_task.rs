//! What a line of input asks for: an answer that is known at once, a command that is run, or the end of one. Pure.
//!
//! Must never make a word of a command that was not checked.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    arguments::ToolArguments,
    call::{MAX_OUTPUT, ToolFailure},
    message::{self, McpMessage, RpcError, VersionForm},
    tools::{self, McpTool},
};

/// What a client tells its model of this server.
const INSTRUCTIONS: &str = "Measurements of the TPU chips of this host, the jobs on it, where the time of jobs went, and recorded \
     XProf sessions. All tools only read. Begin with `status`; `goodput_explain` says what a job lost its time to; `sessions` \
     lists what `show` and `diff` take.";

/// What is to be done about a line.
#[derive(Debug)]
pub enum LineTask {
    /// Nothing.
    Nothing,
    /// It has this answer.
    Answer(Value),
    /// Its answer is what a command prints.
    Run(ToolCall),
    /// The call with this id is not wanted any more.
    Cancel(Value),
}

/// The call of a tool, checked.
#[derive(Debug)]
pub struct ToolCall {
    id: Value,
    form: VersionForm,
    words: Vec<String>,
    limit: Duration,
}

impl LineTask {
    /// That of a line, without its end.
    pub fn of(line: &[u8]) -> Self {
        let McpMessage { id, method, params } = match McpMessage::of(line) {
            Ok(message) => message,
            Err(error) => return Self::Answer(error.answer(&Value::Null)),
        };
        match id {
            Some(id) => {
                requested(&id, &method, &params).unwrap_or_else(|error| Self::Answer(error.answer(&id)))
            }
            None if method == "notifications/cancelled" => Self::Cancel(params["requestId"].clone()),
            None => Self::Nothing,
        }
    }
}

impl ToolCall {
    /// The id of the request.
    pub(super) fn id(&self) -> &Value {
        &self.id
    }

    /// The words of the command.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The longest time that it may take.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The answer to the request.
    pub(super) fn answer(&self, result: Value) -> Value {
        self.form.answer(&self.id, result)
    }
}

fn requested(id: &Value, method: &str, params: &Value) -> Result<LineTask, RpcError> {
    let form = VersionForm::of(params)?;
    let result = match method {
        "initialize" => message::initialized(params, &instructions()),
        "server/discover" => message::discovered(&instructions()),
        "ping" => json!({}),
        "tools/list" => {
            form.kept(json!({ "tools": tools::TOOLS.iter().map(McpTool::listed).collect::<Vec<_>>() }))
        }
        "tools/call" => return called(id, params, form),
        other => return Err(RpcError::unknown_method(other)),
    };
    Ok(LineTask::Answer(form.answer(id, result)))
}

fn called(id: &Value, params: &Value, form: VersionForm) -> Result<LineTask, RpcError> {
    let Some(name) = params["name"].as_str() else {
        return Err(RpcError::invalid_params("params.name: expected the name of a tool"));
    };
    let Some(tool) = tools::TOOLS.iter().find(|tool| tool.name == name) else {
        return Err(RpcError::unknown_tool(name));
    };
    Ok(match ToolArguments::of(tool.arguments, &params["arguments"]) {
        Ok(arguments) => {
            let words = tool.words(&arguments);
            LineTask::Run(ToolCall { id: id.clone(), form, words, limit: tool.limit })
        }
        Err(error) => {
            LineTask::Answer(form.answer(id, ToolFailure::of_arguments(tool.name, &error).result()))
        }
    })
}

fn instructions() -> String {
    format!("{INSTRUCTIONS} A text ends after {} KiB, and says so.", MAX_OUTPUT >> 10)
}
