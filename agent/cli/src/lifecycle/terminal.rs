//! Whether output may be styled.

use std::{env, io::IsTerminal};

/// Whether `stream` is a terminal that shows bold text and colours, and NO_COLOR (<https://no-color.org>) is not set.
pub fn may_be_styled(stream: &impl IsTerminal) -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}
