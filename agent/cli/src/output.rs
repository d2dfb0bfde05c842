//! What commands print: whole texts to standard output, tables whose columns fit, JSON.

use std::io::{self, Write};

use super::exit::{Exit, Failure, one_line};

/// Prints `text`. A reader that went away (`… | head`) is no fault.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unprinted(&error)),
        _ => Ok(()),
    }
}

/// Standard output takes no more.
pub fn unprinted(error: &io::Error) -> Failure {
    let what = format!("cannot write to standard output: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Failure::new(Exit::NoSpace, what).remedy("make room where it leads to")
        }
        _ => Failure::new(Exit::Internal, what),
    }
}

/// Tells the user something on standard error. If nobody can be told, there is nothing more to do.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "tpuscope: {text}");
}

/// Prints `value` as JSON.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Internal, error))?;
    print(&(text + "\n"))
}

/// Rows in columns as wide as their widest cell; control characters in cells are escaped.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new<const N: usize>(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    /// The text, one line a row.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_and_cells_are_escaped() {
        let mut table = Table::new(["A", "LONG"]);
        table.row(["wide".into(), "x".into()]);
        table.row(["\u{1b}".into(), String::new()]);
        assert_eq!(table.text(), "A       LONG\nwide    x\n\\u{1b}\n");
    }
}
