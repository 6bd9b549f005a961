//! Draws a terminal session, read from standard input, as an SVG on standard output: `docs/record.sh` makes the picture
//! of the README from a real run with it. Lines that begin with `$ ` are commands.

use std::io::{Read, Write, stdin, stdout};

/// Size of a character cell, of the margin and of the text, in pixels.
const CELL: (usize, usize) = (8, 18);
const MARGIN: usize = 16;
const SIZE: usize = 13;
/// Columns that are shown; a longer line is cut.
const COLUMNS: usize = 110;

fn main() -> std::io::Result<()> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let lines: Vec<&str> = text.lines().collect();
    let (width, height) = (COLUMNS * CELL.0 + 2 * MARGIN, lines.len() * CELL.1 + 2 * MARGIN);
    let mut out = stdout().lock();
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{SIZE}"><rect width="{width}" height="{height}" rx="8" fill="#1b1f24"/>"##
    )?;
    for (row, line) in lines.iter().enumerate() {
        let shown: String = line.chars().take(COLUMNS).collect();
        let escaped = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let color = if line.starts_with("$ ") { "#7ee787" } else { "#d0d7de" };
        let y = MARGIN + (row + 1) * CELL.1 - 5;
        writeln!(out, r#"<text x="{MARGIN}" y="{y}" fill="{color}" xml:space="preserve">{escaped}</text>"#)?;
    }
    writeln!(out, "</svg>")
}
