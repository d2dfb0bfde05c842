//! A YAML text as a JSON value whose scalars are all strings: the reader knows which type it wants.
//!
//! A key without a value is left out. Must never expand anything: aliases, which can make a small text huge, and tags
//! are refused, and so is a text with more than one document.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Map, Value};
use thiserror::Error;

/// Lists and tables may be nested this deep.
const MAX_DEPTH: usize = 16;

/// Why a text is refused, and where.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {reason}")]
pub(super) struct YamlError {
    line: usize,
    column: usize,
    reason: String,
}

impl YamlError {
    fn at(place: Marker, reason: &str) -> Self {
        Self { line: place.line(), column: place.col() + 1, reason: reason.to_owned() }
    }
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        Self::at(*error.marker(), error.info())
    }
}

/// The value of the only document in `text`; `None` where there is none, or an empty one.
pub(super) fn parse(text: &str) -> Result<Option<Value>, YamlError> {
    let mut events = Events(Parser::new_from_str(text));
    let mut value = None;
    let mut documents = 0;
    loop {
        match events.next()? {
            (Event::StreamEnd, _) => return Ok(value),
            (Event::DocumentStart(_), span) => {
                documents += 1;
                if documents > 1 {
                    return Err(YamlError::at(span.start, "a second document begins here: one is expected"));
                }
                let first = events.next()?;
                value = events.value(first, 0)?;
            }
            _ => {}
        }
    }
}

struct Events<'a, I: saphyr_parser::Input>(Parser<'a, I>);

impl<'a, I: saphyr_parser::Input> Events<'a, I> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.0.next_event() {
            Some(event) => Ok(event?),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The value that begins with this event; `None` for none or `null`.
    fn value(&mut self, (event, span): (Event<'a>, Span), depth: usize) -> Result<Option<Value>, YamlError> {
        let refused = |reason| Err(YamlError::at(span.start, reason));
        if depth > MAX_DEPTH {
            return refused("lists and tables are nested too deep here");
        }
        match event {
            Event::Scalar(.., Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => refused("tags such as `!!str` are not supported"),
            Event::Alias(_) => refused("aliases such as `*name` are not supported"),
            Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => Ok(None),
            Event::Scalar(text, ..) => Ok(Some(Value::String(text.into_owned()))),
            Event::SequenceStart(..) => self.list(depth).map(Some),
            Event::MappingStart(..) => self.table(depth).map(Some),
            _ => refused("a value is expected here"),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(list)),
                event => list.push(self.value(event, depth + 1)?.unwrap_or_default()),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut table = Map::new();
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let (key, place) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Object(table)),
                (Event::Scalar(key, _, _, None), span) => (key.into_owned(), span.start),
                (_, span) => return Err(YamlError::at(span.start, "a key is expected here")),
            };
            if !seen.insert(key.clone()) {
                return Err(YamlError::at(place, &format!("`{}` stands here twice", key.escape_debug())));
            }
            let event = self.next()?;
            if let Some(value) = self.value(event, depth + 1)? {
                table.insert(key, value);
            }
        }
    }
}

/// Source: the core schema of YAML 1.2.
fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_scalar_is_a_string() {
        let text = "a: 1\nb: 'no'\nc: [x, \"y\", 0.5]\nd:\n  e: true # why\nf: |\n  two\n  lines\ng:\nh: ~\ni: 'null'\n";
        let want = json!({"a": "1", "b": "no", "c": ["x", "y", "0.5"], "d": {"e": "true"}, "f": "two\nlines\n", "i": "null"});
        assert_eq!(parse(text), Ok(Some(want)));
        for empty in ["", "# nothing\n", "---\n", "null\n"] {
            assert_eq!(parse(empty), Ok(None), "{empty}");
        }
    }

    #[test]
    fn an_error_says_where() {
        assert!(refused("a: [1,\nb").starts_with("line 2, column "), "{}", refused("a: [1,\nb"));
        assert_eq!(refused("a: 1\na: 2\n"), "line 2, column 1: `a` stands here twice");
        assert_eq!(
            refused("a: 1\n---\nb: 2\n"),
            "line 2, column 1: a second document begins here: one is expected"
        );
    }

    #[test]
    fn nothing_is_expanded() {
        assert!(refused("a: &x [1]\nb: *x\n").contains("line 2, column 4: aliases"));
        assert!(refused("a: !!binary eA==\n").contains("tags"));
        assert!(refused(&format!("{}{}", "[".repeat(30), "]".repeat(30))).contains("nested too deep"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), near in "[a-c:\\[\\]{}&*!|>'\"# \n-]{0,60}") {
            let _ = (parse(&text), parse(&near));
        }
    }
}
