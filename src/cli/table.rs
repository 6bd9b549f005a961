//! Tables for people: columns as wide as their contents, and on a terminal never wider than the terminal.

use std::io::{self, IsTerminal};

use kube_ext::printable::on_one_line;

/// Space between two columns.
const GAP: &str = "   ";
/// Minimum width of a column.
const NARROWEST: usize = 8;

/// A table with headings.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row with one cell per heading. A cell stays on its line, whoever wrote what it holds.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| on_one_line(&cell).into_owned()).collect());
    }

    /// The text without a final newline; `width` is that of the terminal, `None` without one.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        let widths = self.widths(width);
        let lines = self.rows.iter().map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| fitted(cell, *width));
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Widths of the columns. Excess width is taken from the last column first, which holds the messages.
    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        let total = widths.iter().sum::<usize>() + gaps;
        let mut excess = total.saturating_sub(limit.unwrap_or(total));
        for width in widths.iter_mut().rev() {
            let less = excess.min(width.saturating_sub(NARROWEST));
            *width -= less;
            excess -= less;
        }
        widths
    }
}

/// A cell padded or cut to this width.
fn fitted(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return format!("{cell:<width$}");
    }
    cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Columns and lines of the terminal on standard output, if there is one.
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    let (width, height) = terminal_size::terminal_size_of(&stdout).filter(|_| stdout.is_terminal())?;
    Some((usize::from(width.0), usize::from(height.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "STATUS", "MESSAGE"]);
        table.row(["hollow-nodes-abcdef", "Ready", ""].map(str::to_owned));
        table.row(["b", "NotReady", "the machine is in an unhealthy phase"].map(str::to_owned));
        table
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        assert_eq!(
            table().text(None),
            "NAME                  STATUS     MESSAGE\n\
             hollow-nodes-abcdef   Ready\n\
             b                     NotReady   the machine is in an unhealthy phase"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 30..90 {
            let text = table().text(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
        let text = table().text(Some(46));
        assert!(text.ends_with("the machine …") && text.contains("hollow-nodes-abcdef"), "{text}");
        let text = table().text(Some(36));
        assert!(text.contains("hollow-nodes-…"), "then the first column: {text}");
        // Cells too narrow to show are wider than the terminal instead of empty.
        assert!(table().text(Some(1)).contains("hollow-…"));
    }
}
