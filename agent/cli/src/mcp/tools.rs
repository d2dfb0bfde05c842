//! The tools: what each is for, its arguments, and the command that answers it.
//!
//! All of them read, and only from the agent. Must never have a command that changes something, or that takes a path.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::arguments::{
    Argument,
    ArgumentKind::{self, Number, OneOf, Session, Switch, Text, Time},
    ToolArguments,
};

/// The longest time of a call that asks the agent once. The command has shorter limits of its own, and says more.
const ONE_QUESTION: Duration = Duration::from_secs(30);
/// The longest time of a call that reads traces.
const TRACES: Duration = Duration::from_secs(120);

const JSON: Argument = optional("json", Switch, "JSON instead of text. It is exact, and longer.");

/// A tool.
#[derive(Debug)]
pub(super) struct McpTool {
    pub(super) name: &'static str,
    about: &'static str,
    pub(super) arguments: &'static [Argument],
    pub(super) limit: Duration,
    /// The words of the command, without those that all have.
    command: fn(&ToolArguments) -> Vec<String>,
}

const fn optional(name: &'static str, kind: ArgumentKind, about: &'static str) -> Argument {
    Argument { name, kind, required: false, about }
}

const fn required(name: &'static str, kind: ArgumentKind, about: &'static str) -> Argument {
    Argument { name, kind, required: true, about }
}

/// All tools.
pub(super) static TOOLS: [McpTool; 8] = [
    McpTool {
        name: "status",
        about: "The TPU chips of this host now: health, owner, load, memory; the processes that hold them, the \
                step times of jobs, and why a source has no values.",
        arguments: &[
            optional("chip", Number(0, 1023), "Only this chip and the processes that use it."),
            optional("pid", Number(1, u32::MAX), "Only this process and the chips that it uses."),
            optional("verbose", Switch, "All sources, also those that work."),
            JSON,
        ],
        limit: ONE_QUESTION,
        command: |sent| {
            let verbose = sent.is_on("verbose").then(|| "--verbose".to_owned());
            words(&["status"], [sent.option("chip"), sent.option("pid"), verbose])
        },
    },
    McpTool {
        name: "metrics",
        about: "The latest value of every series of this host and its workloads, or of the metrics whose name contains a text.",
        arguments: &[
            optional("pattern", Text, "Only metrics whose name contains this text, such as hbm."),
            JSON,
        ],
        limit: ONE_QUESTION,
        command: |sent| positional(words(&["metrics"], []), [sent.get("pattern")]),
    },
    McpTool {
        name: "history",
        about: "The past values of a metric; of a counter its rise per second. As text: extremes, last value and course of \
                each series.",
        arguments: &[
            required("metric", Text, "Name of the metric, as the tool `metrics` lists it."),
            optional("chip", Number(0, 1023), "Only series of this chip."),
            optional("last", Time, "Only values of this last part of the time, such as \"10m\"."),
            JSON,
        ],
        limit: ONE_QUESTION,
        command: |sent| {
            positional(words(&["history"], [sent.option("chip"), sent.option("last")]), [sent.get("metric")])
        },
    },
    McpTool {
        name: "sessions",
        about: "The recorded XProf sessions in the agent's store that the caller may read, oldest first.",
        arguments: &[optional("limit", Number(1, 1000), "Only the newest; 50 if it is not given."), JSON],
        limit: ONE_QUESTION,
        command: |sent| {
            let limit = sent.option("limit").unwrap_or_else(|| "--limit=50".to_owned());
            words(&["sessions", "list"], [Some(limit)])
        },
    },
    McpTool {
        name: "show",
        about: "The figures of a recorded session: step times, operations, idle time, stragglers, input.",
        arguments: &[
            required("session", Session, "Name of the session, as the tool `sessions` lists it."),
            optional(
                "top",
                Number(0, 1000),
                "Operations and annotations of each host; 10 if it is not given.",
            ),
            JSON,
        ],
        limit: TRACES,
        command: |sent| {
            let top = sent.option("top").unwrap_or_else(|| "--top=10".to_owned());
            positional(words(&["sessions", "show"], [Some(top)]), [sent.get("session")])
        },
    },
    McpTool {
        name: "diff",
        about: "What differs between two recorded sessions: step times, operations, stragglers, and from which step on.",
        arguments: &[
            required("a", Session, "Name of the session before."),
            required("b", Session, "Name of the session after."),
            optional("top", Number(0, 1000), "Operations; 10 if it is not given."),
            JSON,
        ],
        limit: TRACES,
        command: |sent| {
            let top = sent.option("top").unwrap_or_else(|| "--top=10".to_owned());
            positional(words(&["sessions", "diff"], [Some(top)]), [sent.get("a"), sent.get("b")])
        },
    },
    McpTool {
        name: "goodput_explain",
        about: "Where the time of a job went: the share that was progress, the causes of the lost time with their evidence, and \
                what to do. From duty cycles and open chips (proxy), or from what the program recorded of itself (exact, strict).",
        arguments: &[
            optional(
                "job",
                Text,
                "The job: [KIND:]ID or its name. Without it: the jobs that run, else the last one.",
            ),
            optional("window", Time, "Only the last part of the time, such as \"1h\"."),
            optional(
                "ledger",
                OneOf(&["proxy", "exact", "strict"]),
                "proxy if it is not given. exact and strict need the job, and marks of it.",
            ),
            JSON,
        ],
        limit: ONE_QUESTION,
        command: |sent| {
            let ledger = match sent.get("ledger") {
                Some("exact") => "--exact",
                Some("strict") => "--strict",
                _ => "--explain",
            };
            words(&["goodput", ledger], [sent.option("job"), sent.option("window")])
        },
    },
    McpTool {
        name: "jobs",
        about: "The jobs of this host over time, the newest first; or one job with all its attempts, how each ended, and its \
                software and system.",
        arguments: &[
            optional("job", Text, "Only this job, in full: [KIND:]ID[#ATTEMPT] or its name."),
            optional("running", Switch, "Only those that run."),
            optional("limit", Number(1, 1000), "At most this many; 50 if it is not given."),
            JSON,
        ],
        limit: ONE_QUESTION,
        command: |sent| {
            if let Some(job) = sent.get("job") {
                return positional(words(&["jobs", "show"], []), [Some(job)]);
            }
            let limit = sent.option("limit").unwrap_or_else(|| "--limit=50".to_owned());
            words(&["jobs", "list"], [Some(limit), sent.is_on("running").then(|| "--running".to_owned())])
        },
    },
];

/// A command with the options that were chosen.
fn words<const N: usize>(command: &[&str], options: [Option<String>; N]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).chain(options.into_iter().flatten()).collect()
}

/// The same with values that are no options, whatever they begin with.
fn positional<const N: usize>(mut words: Vec<String>, values: [Option<&str>; N]) -> Vec<String> {
    words.push("--".to_owned());
    words.extend(values.into_iter().flatten().map(str::to_owned));
    words
}

impl McpTool {
    /// The words of the command for these arguments.
    pub(super) fn words(&self, sent: &ToolArguments) -> Vec<String> {
        let mut words = (self.command)(sent);
        if sent.is_on("json") {
            let options = words.iter().position(|word| word == "--").unwrap_or(words.len());
            words.insert(options, "--json".to_owned());
        }
        words
    }

    /// The tool as a client sees it.
    pub(super) fn listed(&self) -> Value {
        let properties: Map<String, Value> =
            self.arguments.iter().map(|argument| (argument.name.to_owned(), argument.schema())).collect();
        let required: Vec<&str> = self
            .arguments
            .iter()
            .filter(|argument| argument.required)
            .map(|argument| argument.name)
            .collect();
        json!({
            "name": self.name,
            "description": self.about,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Command, sessions::SessionsCommand};

    fn command(name: &str, sent: &Value) -> Vec<String> {
        let tool = TOOLS.iter().find(|tool| tool.name == name).unwrap();
        tool.words(&ToolArguments::of(tool.arguments, sent).unwrap())
    }

    #[test]
    fn every_command_is_one_that_only_reads_and_that_the_parser_takes() {
        for (name, sent) in [
            ("status", json!({})),
            ("status", json!({ "chip": 1, "pid": 7, "verbose": true })),
            ("metrics", json!({})),
            ("metrics", json!({ "pattern": "--socket=/x", "json": true })),
            ("history", json!({ "metric": "--json", "chip": 0, "last": "10m", "json": true })),
            ("sessions", json!({ "limit": 3, "json": true })),
            ("show", json!({ "session": "-x", "top": 0, "json": true })),
            ("diff", json!({ "a": "x", "b": "y", "json": true })),
            ("goodput_explain", json!({})),
            ("goodput_explain", json!({ "job": "--from-log=/x", "window": "1h", "json": true })),
            ("goodput_explain", json!({ "job": "j", "ledger": "strict" })),
            ("jobs", json!({ "running": true, "limit": 1000 })),
            ("jobs", json!({ "job": "-x#1", "json": true })),
        ] {
            let words = command(name, &sent);
            let all = ["tpuscope".to_owned()].into_iter().chain(words.clone());
            let parsed = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            assert!(
                matches!(
                    parsed.command,
                    Command::Status(_)
                        | Command::Metrics(_)
                        | Command::History(_)
                        | Command::Goodput(_)
                        | Command::Jobs(_)
                        | Command::Sessions(
                            SessionsCommand::List(_) | SessionsCommand::Show(_) | SessionsCommand::Diff(_)
                        )
                ),
                "{words:?}"
            );
            assert_eq!(
                words.contains(&"--json".to_owned()),
                sent["json"] == true || name == "history",
                "{words:?}"
            );
        }
        assert_eq!(
            command("metrics", &json!({ "pattern": "hbm", "json": true })),
            ["metrics", "--json", "--", "hbm"]
        );
    }

    #[test]
    fn a_tool_is_listed_with_the_schema_of_its_arguments() {
        let listed = TOOLS[2].listed();
        assert_eq!(listed["inputSchema"]["required"], json!(["metric"]));
        assert_eq!(listed["inputSchema"]["properties"]["chip"]["maximum"], 1023);
        assert_eq!(listed["annotations"]["readOnlyHint"], true);
    }

    #[test]
    fn the_docs_list_every_tool() {
        let docs = include_str!("../../../../docs/mcp.md");
        let listed: Vec<&str> = docs
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(listed, TOOLS.iter().map(|tool| tool.name).collect::<Vec<_>>());
    }
}
