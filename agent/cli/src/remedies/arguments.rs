//! A wrong command line: what is wrong from the parser's structured context, and how to find the right usage.

use std::{
    error::Error,
    fmt::Write,
    num::{IntErrorKind, ParseIntError},
};

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{Cli, exit::Exit, failure::Failure, output::one_line};

/// The longest quotation of a value, in characters.
const MAX_QUOTED: usize = 80;

/// The failure for `error`, which parsing `words` (without the program's name) gave.
pub(crate) fn arguments(error: &clap::Error, words: &[String]) -> Failure {
    let unexpected = error.kind() == ErrorKind::UnknownArgument;
    if unexpected
        && subcommand(words) == " config check"
        && texts(error, ContextKind::InvalidArg) == ["--config"]
    {
        return Failure::new(Exit::Usage, what(error))
            .remedy("`tpuscope config check FILE` takes the file without an option");
    }
    let mut remedy = String::new();
    for (kind, noun) in [
        (ContextKind::SuggestedSubcommand, "subcommand"),
        (ContextKind::SuggestedArg, "argument"),
        (ContextKind::SuggestedValue, "value"),
    ] {
        for name in texts(error, kind) {
            // Writing to a String cannot fail.
            let _ = write!(remedy, "a similar {noun} exists: '{name}'; ");
        }
    }
    for tip in texts(error, ContextKind::Suggested) {
        let _ = write!(remedy, "{tip}; ");
    }
    let _ = write!(remedy, "`tpuscope{} --help` shows the usage", subcommand(words));
    Failure::new(Exit::Usage, what(error)).remedy(remedy)
}

fn what(error: &clap::Error) -> String {
    let argument = texts(error, ContextKind::InvalidArg).join(", ");
    let value = texts(error, ContextKind::InvalidValue).join(", ");
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unexpected argument '{argument}' found"),
        ErrorKind::InvalidSubcommand => {
            let name = texts(error, ContextKind::InvalidSubcommand).join(" ");
            format!("unrecognized subcommand '{name}'")
        }
        ErrorKind::MissingRequiredArgument => {
            format!("the following required arguments were not provided: {argument}")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("'{argument}' needs a value{}", choices(error))
        }
        ErrorKind::InvalidValue => format!("invalid value '{value}' for '{argument}'{}", choices(error)),
        ErrorKind::ValueValidation => {
            let why = error.source().map(|why| format!(": {}", reason(why))).unwrap_or_default();
            format!("invalid value '{value}' for '{argument}'{why}")
        }
        ErrorKind::ArgumentConflict => match texts(error, ContextKind::PriorArg).join("', '") {
            others if others == argument => {
                format!("the argument '{argument}' cannot be used multiple times")
            }
            others if others.is_empty() => format!("the argument '{argument}' cannot be used with others"),
            others => format!("the argument '{argument}' cannot be used with '{others}'"),
        },
        ErrorKind::TooManyValues => format!("unexpected value '{value}' for '{argument}' found"),
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            format!("wrong number of values for '{argument}'")
        }
        ErrorKind::NoEquals => format!("equal sign is needed when assigning values to '{argument}'"),
        ErrorKind::InvalidUtf8 => "invalid UTF-8 in the arguments".to_owned(),
        kind => kind.as_str().unwrap_or("invalid arguments").to_owned(),
    }
}

/// Why a value cannot be read. The standard library's text is about digits and targets.
fn reason(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "it is too large".to_owned(),
        Some(_) => "it is not a whole number".to_owned(),
        None => error.to_string(),
    }
}

fn choices(error: &clap::Error) -> String {
    match texts(error, ContextKind::ValidValue).join(", ") {
        choices if choices.is_empty() => choices,
        choices => format!(": expected one of {choices}"),
    }
}

/// The texts of one kind of context, each on one line and short: they may quote the command line.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    let texts = match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
        Some(ContextValue::StyledStrs(texts)) => texts.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    texts.iter().map(|text| quote(text)).collect()
}

fn quote(text: &str) -> String {
    let cut = if text.chars().count() > MAX_QUOTED { "…" } else { "" };
    one_line(&text.chars().take(MAX_QUOTED).collect::<String>()) + cut
}

/// The subcommand at the start of `words`, each word after a space.
fn subcommand(words: &[String]) -> String {
    let mut command = &Cli::command();
    let mut names = String::new();
    for word in words {
        let Some(inner) = command.find_subcommand(word) else { break };
        command = inner;
        names += &format!(" {word}");
    }
    names
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn message(words: &[&str]) -> String {
        let error = Cli::try_parse_from(["tpuscope"].iter().chain(words)).expect_err("a wrong command line");
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        arguments(&error, &words).to_string()
    }

    #[test]
    fn a_wrong_command_line_is_one_line_and_a_remedy() {
        assert_eq!(
            message(&["capture", "--duratoin", "2s"]),
            "unexpected argument '--duratoin' found\n  a similar argument exists: '--duration'; \
             `tpuscope capture --help` shows the usage"
        );
        assert_eq!(
            message(&["config", "check", "--config", "x.toml"]),
            "unexpected argument '--config' found\n  `tpuscope config check FILE` takes the file without an option"
        );
        assert_eq!(
            message(&["sessions", "show"]),
            "the following required arguments were not provided: <SESSION>...\n  \
             `tpuscope sessions show --help` shows the usage"
        );
        assert_eq!(
            message(&["capture", "--duration", "2"]),
            "invalid value '2' for '--duration <DURATION>': `2` has no unit: write ns, us, ms, s, m, h or d, \
             as in `2s`\n  `tpuscope capture --help` shows the usage"
        );
        assert_eq!(
            message(&["statsu"]),
            "unrecognized subcommand 'statsu'\n  a similar subcommand exists: 'status'; \
             `tpuscope --help` shows the usage"
        );
    }

    #[test]
    fn every_kind_of_mistake_has_its_words() {
        for (words, wanted) in [
            (
                &["capture", "--pid", "1", "--target", "h:1"][..],
                "the argument '--pid <PID>' cannot be used with",
            ),
            (
                &["sessions", "export", "p", "-o", "o", "--format", "x"],
                "for '--format <FORMAT>': expected one of perfetto, csv",
            ),
            (
                &["sessions", "export", "p", "-o", "o", "--format"],
                "'--format <FORMAT>' needs a value: expected one of perfetto, csv",
            ),
            (&["status", "--pid", "abc"], "invalid value 'abc' for '--pid <PID>': it is not a whole number"),
            (&["status", "--chip", "99999999999"], "99999999999 is not in 0..=4294967295"),
            (&["status", "--chip", "99999999999999999999"], "for '--chip <N>': it is too large"),
            (&["status", "--json", "--json"], "the argument '--json' cannot be used multiple times"),
        ] {
            let message = message(words);
            assert!(message.contains(wanted), "{message}");
            assert_eq!(message.lines().count(), 2, "{message}");
        }
        let long = message(&["capture", "--session", &format!("a\n{}", "b".repeat(500))]);
        assert!(long.lines().count() == 2 && long.len() < 400, "{long}");
    }
}
