//! A command of the user's own: split as shell words without any expansion, with `{host}` in place of the host's name.

use std::str::FromStr;

/// What stands for the name.
const HOST: &str = "{host}";
/// The longest template, bytes.
const LONGEST: usize = 8 << 10;

/// The whole command, `… tpuscope dial-stdio` included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate {
    program: String,
    words: Vec<String>,
}

/// Why a text is no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// No word.
    #[error("the command is empty")]
    Empty,
    /// Quotes without their pair.
    #[error("a quote of the command does not end")]
    Quote,
    /// A backslash at the end.
    #[error("the command ends with a backslash")]
    Backslash,
    /// No word has `{{host}}`: all hosts would be the same one.
    #[error("the command does not contain {{host}}")]
    NoHost,
    /// A word begins with `{{host}}` where a program is expected.
    #[error("the program of the command must not contain {{host}}")]
    HostAsProgram,
    /// A control character.
    #[error("the command has a control character")]
    Control,
    /// Too long.
    #[error("the command has more than {LONGEST} bytes")]
    Long,
}

impl FromStr for CommandTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.len() > LONGEST {
            return Err(TemplateError::Long);
        }
        if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
            return Err(TemplateError::Control);
        }
        let mut words = words(text)?.into_iter();
        let program = words.next().filter(|program| !program.is_empty()).ok_or(TemplateError::Empty)?;
        let words: Vec<String> = words.collect();
        if program.contains(HOST) {
            return Err(TemplateError::HostAsProgram);
        }
        if !words.iter().any(|word| word.contains(HOST)) {
            return Err(TemplateError::NoHost);
        }
        Ok(Self { program, words })
    }
}

impl CommandTemplate {
    /// The program.
    pub(super) fn program(&self) -> &str {
        &self.program
    }

    /// The words after the program for a host. A name is never split into words.
    pub(super) fn words(&self, host: &str) -> Vec<String> {
        self.words.iter().map(|word| word.replace(HOST, host)).collect()
    }
}

/// The words of a POSIX shell's line, without any expansion.
fn words(text: &str) -> Result<Vec<String>, TemplateError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => quoted(&mut rest, word.get_or_insert_default())?,
            '"' => double_quoted(&mut rest, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(rest.next().ok_or(TemplateError::Backslash)?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), TemplateError> {
    for c in rest {
        if c == '\'' {
            return Ok(());
        }
        word.push(c);
    }
    Err(TemplateError::Quote)
}

/// In double quotes a backslash is one, except before those that a shell would read there.
fn double_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), TemplateError> {
    while let Some(c) = rest.next() {
        match c {
            '"' => return Ok(()),
            '\\' => match rest.next().ok_or(TemplateError::Quote)? {
                c @ ('"' | '\\' | '$' | '`') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
    Err(TemplateError::Quote)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_those_of_a_shell_without_expansion() {
        let split = |text: &str| words(text).unwrap();
        assert_eq!(split(" ssh  -J b {host}\ttpuscope "), ["ssh", "-J", "b", "{host}", "tpuscope"]);
        assert_eq!(split(r#"a 'b c' "d e"f '' "" g\ h"#), ["a", "b c", "d ef", "", "", "g h"]);
        assert_eq!(
            split(r#"$HOME `id` $(id) * ~ "$x" '\n' "\n\"\$""#),
            ["$HOME", "`id`", "$(id)", "*", "~", "$x", "\\n", "\\n\"$"]
        );
        assert_eq!(words("a 'b"), Err(TemplateError::Quote));
        assert_eq!(words("a \"b\\"), Err(TemplateError::Quote));
        assert_eq!(words("a\\"), Err(TemplateError::Backslash));
    }

    #[test]
    fn the_host_stands_inside_a_word() {
        let template: CommandTemplate = "gcloud ssh 'vm-{host}' --command=x".parse().unwrap();
        assert_eq!(template.words("a.b"), ["ssh", "vm-a.b", "--command=x"]);
        let refused = |text: &str| text.parse::<CommandTemplate>().unwrap_err();
        assert_eq!(refused(""), TemplateError::Empty);
        assert_eq!(refused("'' {host}"), TemplateError::Empty);
        assert_eq!(refused("ssh tpu-1 tpuscope dial-stdio"), TemplateError::NoHost);
        assert_eq!(refused("{host} x"), TemplateError::HostAsProgram);
        assert_eq!(refused("ssh {host}\u{0}"), TemplateError::Control);
        assert_eq!(refused(&"x".repeat(LONGEST + 1)), TemplateError::Long);
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(wanted in prop::collection::vec("[a-z '\"$\\\\]{0,6}", 0..5)) {
            let quoted: Vec<String> = wanted.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(words(&quoted.join(" ")).unwrap(), wanted);
        }

        #[test]
        fn any_text_is_split_or_refused(text in "\\PC{0,40}") {
            let _ = text.parse::<CommandTemplate>();
        }
    }
}
