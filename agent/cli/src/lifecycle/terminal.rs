//! What a terminal may be sent beside text.

use std::{env, io::IsTerminal};

/// Whether what goes to `stream` may be bold and in colours: a terminal that can, and a user who wants it
/// (<https://no-color.org>).
pub fn may_be_styled(stream: &impl IsTerminal) -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}
