//! Output of the commands: text, aligned tables and JSON on standard output, messages on standard error.

use std::io::{self, Write};

use model::untrusted::harmless;

use super::{failure::Failure, remedies};

/// Prints `text`. A closed pipe (`| head`) is not a failure.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    print_more(text).map(drop)
}

/// [`print`], and whether more can be printed: not after a pipe was closed.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_more(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(remedies::unprinted(&error)),
    }
}

/// Prints a message to standard error. A failure to print is ignored: there is nowhere to report it.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "tpuscope: {text}");
}

/// Prints `value` as JSON.
///
/// # Errors
/// If standard output cannot be written.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print(&json_text(value)?)
}

/// `value` as JSON.
///
/// # Errors
/// If JSON cannot hold it.
pub fn json_text(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    Ok(text + "\n")
}

/// `text` on one line. Control characters and others that could deceive a reader are escaped: it may quote a file or a peer.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) {
            line.push(c);
        } else {
            line.extend(c.escape_default());
        }
    }
    line
}

/// The cell of a table where there is nothing to show.
pub const NOTHING: &str = "-";

/// A cell that is longer does not widen its column: one long name would move the columns of all rows.
const WIDEST: usize = 64;

/// A table as text. Columns are as wide as their widest cell of at most [`WIDEST`], and cells are escaped. An empty cell is
/// [`NOTHING`].
#[derive(Debug, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with this header.
    pub fn new<const N: usize>(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| cell_text(cell)).collect());
    }

    /// The text, one line per row.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).filter(|width| *width <= WIDEST).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn cell_text(cell: &str) -> String {
    if cell.is_empty() { NOTHING.to_owned() } else { one_line(cell) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_on_its_line() {
        assert_eq!(one_line("äexe.\u{202e}cod"), "äexe.\\u{202e}cod");
    }

    #[test]
    fn columns_fit_and_cells_are_escaped() {
        let mut table = TextTable::new(["A", "LONG"]);
        table.row(["wide".into(), "x".into()]);
        table.row(["\u{1b}".into(), String::new()]);
        assert_eq!(table.text(), "A       LONG\nwide    x\n\\u{1b}  -\n");
        let long = "x".repeat(WIDEST + 1);
        table.row([long.clone(), "y".into()]);
        assert_eq!(table.text(), format!("A       LONG\nwide    x\n\\u{{1b}}  -\n{long}  y\n"));
    }
}
