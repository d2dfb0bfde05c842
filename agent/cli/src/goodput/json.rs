//! Error messages for JSON text.

/// The message for an error in `text`: the offending value where JSON does not allow it, and the column.
pub(super) fn message(error: &serde_json::Error, text: &[u8]) -> String {
    if let Err(at) = std::str::from_utf8(text) {
        return format!("not UTF-8 at byte {}", at.valid_up_to() + 1);
    }
    let position = format!(" at line {} column {}", error.line(), error.column());
    let mut what = match non_finite(error, text) {
        Some(name) => format!("{name} is not JSON"),
        None => error.to_string().trim_end_matches(&position).to_owned(),
    };
    // serde names the types of its own data model, not those of JSON.
    for (theirs, json) in [
        ("type: map", "type: object"),
        ("type: sequence", "type: array"),
        ("expected a sequence", "expected an array"),
    ] {
        what = what.replace(theirs, json);
    }
    if error.line() == 1 && error.column() > 0 { format!("{what}, column {}", error.column()) } else { what }
}

/// The message for an error in a whole file, with the line.
pub(super) fn message_with_line(error: &serde_json::Error, text: &[u8]) -> String {
    format!("line {}: {}", error.line().max(1), message(error, text))
}

/// The value at the error if it is one that some writers write instead of a number.
fn non_finite(error: &serde_json::Error, text: &[u8]) -> Option<&'static str> {
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
        message_with_line(&error, text)
    }

    #[test]
    fn non_finite_numbers_and_the_line_are_named() {
        assert!(fault(b"{\"a\": NaN}").starts_with("line 1: NaN is not JSON"));
        assert!(fault(b"[1,\nInfinity]").starts_with("line 2: Infinity"));
        assert!(fault(b"[-Infinity]").contains("Infinity is not JSON"));
        assert_eq!(fault(b"[\"\xff\"]"), "line 1: not UTF-8 at byte 3");
        assert_eq!(fault(b"[1,\n2,\n]"), "line 3: trailing comma");
    }
}
