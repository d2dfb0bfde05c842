//! What is wrong with JSON text, in the user's words.

/// Says what is wrong with `text`: what JSON does not have by its name, and the column if all is one line.
pub(super) fn words(error: &serde_json::Error, text: &[u8]) -> String {
    if let Err(at) = std::str::from_utf8(text) {
        return format!("not UTF-8 at byte {}", at.valid_up_to() + 1);
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = match no_number(error, text) {
        Some(name) => format!("{name}, which is no JSON"),
        None => error.to_string().trim_end_matches(&place).to_owned(),
    };
    if error.line() == 1 { format!("{what}, column {}", error.column()) } else { what }
}

/// The same for a whole file, with its line.
pub(super) fn place_and_words(error: &serde_json::Error, text: &[u8]) -> String {
    format!("line {}: {}", error.line().max(1), words(error, text))
}

/// The value that some writers put where a number should be, if the error is there.
fn no_number(error: &serde_json::Error, text: &[u8]) -> Option<&'static str> {
    let line = text.split(|byte| *byte == b'\n').nth(error.line().checked_sub(1)?)?;
    // The column is that of the value's first byte, or of the one before or after it.
    let before = error.column().saturating_sub(2);
    let near = (before..before + 3).filter_map(|at| line.get(at..));
    let starts =
        |name: &'static str| near.clone().any(|rest| rest.starts_with(name.as_bytes())).then_some(name);
    starts("NaN").or_else(|| starts("-Infinity")).or_else(|| starts("Infinity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &[u8]) -> String {
        let error = serde_json::from_slice::<serde_json::Value>(text).unwrap_err();
        place_and_words(&error, text)
    }

    #[test]
    fn names_what_json_does_not_have_and_one_line() {
        assert!(fault(b"{\"a\": NaN}").starts_with("line 1: NaN, which is no JSON"));
        assert!(fault(b"[1,\nInfinity]").starts_with("line 2: Infinity"));
        assert!(fault(b"[-Infinity]").contains("Infinity, which is no JSON"));
        assert_eq!(fault(b"[\"\xff\"]"), "line 1: not UTF-8 at byte 3");
        assert_eq!(fault(b"[1,\n2,\n]"), "line 3: trailing comma");
    }
}
