//! Pages that follow one another: in place on a terminal, below one another elsewhere.
//!
//! Must never change a mode of the terminal: a command that is killed could not restore it.

use std::{
    env,
    io::{IsTerminal, stdout},
};

/// Where the pages go.
pub(super) enum Screen {
    /// Each page replaces the one before.
    Terminal,
    /// Each page is followed by an empty line.
    Stream,
}

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy)]
struct Size {
    rows: usize,
    columns: usize,
}

/// For a terminal that does not tell its size.
const USUAL: Size = Size { rows: 24, columns: 80 };

impl Screen {
    /// What standard output is.
    pub(super) fn of_output() -> Self {
        let can_move = env::var_os("TERM").is_none_or(|term| term != "dumb");
        if stdout().is_terminal() && can_move { Self::Terminal } else { Self::Stream }
    }

    /// What is to be written for the next page.
    pub(super) fn next(&self, page: String) -> String {
        match self {
            Self::Terminal => over_the_last(&page, size()),
            Self::Stream => page + "\n",
        }
    }
}

/// The size of the terminal now.
fn size() -> Size {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            Size { rows: size.ws_row.into(), columns: size.ws_col.into() }
        }
        _ => USUAL,
    }
}

/// A page that replaces the one on the terminal: each row is cleared behind its text, so that nothing flickers. What has no
/// room is left out: a page that scrolls would leave its first rows behind.
fn over_the_last(page: &str, size: Size) -> String {
    // The last row is for the cursor; a full row would move it in different ways.
    let (room, width) = (size.rows.saturating_sub(1).max(1), size.columns.saturating_sub(1).max(1));
    let mut rows: Vec<String> = Vec::new();
    for line in page.lines() {
        let characters: Vec<char> = line.chars().collect();
        match characters.len() {
            0 => rows.push(String::new()),
            _ => rows.extend(characters.chunks(width).map(|chunk| chunk.iter().collect())),
        }
    }
    if rows.len() > room {
        let left_out = rows.len() - (room - 1);
        rows.truncate(room - 1);
        let notice = format!("({left_out} more rows; --chip and --pid show less)");
        rows.push(notice.chars().take(width).collect());
    }
    let rows: String = rows.iter().map(|row| format!("{row}\x1b[K\n")).collect();
    format!("\x1b[H{rows}\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_replaces_the_last_one() {
        assert_eq!(over_the_last("a\n\nb\n", USUAL), "\x1b[Ha\x1b[K\n\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(Screen::Stream.next("a\n".into()), "a\n\n");
    }

    #[test]
    fn a_page_never_scrolls() {
        let small = Size { rows: 4, columns: 6 };
        assert_eq!(over_the_last("12345678\nä\n", small), "\x1b[H12345\x1b[K\n678\x1b[K\nä\x1b[K\n\x1b[J");
        let cut = over_the_last("1\n2\n3\n4\n", small);
        assert_eq!(cut, "\x1b[H1\x1b[K\n2\x1b[K\n(2 mo\x1b[K\n\x1b[J");
        for (rows, columns) in [(0, 0), (1, 1), (2, 500)] {
            let size = Size { rows, columns };
            assert_eq!(over_the_last("1\n2\n3\n", size).matches('\n').count(), 1, "{size:?}");
        }
    }
}
