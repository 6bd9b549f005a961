//! Pieces of a page in Markdown, such that a forge and mdBook show the same.

/// A page: its title, and what it is made from.
pub fn page(title: &str, source: &str) -> String {
    format!("<!-- Made from {source} by tests/generated; do not edit. -->\n\n# {title}\n")
}

/// Text as code.
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A text of several lines in one, in which `<` begins no tag unless it is code.
pub fn prose(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let escaped =
        pieces.map(|(at, piece)| if at % 2 == 0 { piece.replace('<', "&lt;") } else { piece.to_owned() });
    escaped.collect::<Vec<_>>().join("`").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A table.
pub fn table<const N: usize>(columns: [&str; N], rows: &[[String; N]]) -> String {
    // A cell without anything is one space, so that no line has a run of them.
    let line = |cells: &[String]| {
        cells.iter().fold("|".to_owned(), |line, cell| match cell.as_str() {
            "" => line + " |",
            cell => line + " " + &cell.replace('|', "\\|") + " |",
        })
    };
    let mut lines = vec![line(&columns.map(str::to_owned)), format!("|{}", " --- |".repeat(N))];
    lines.extend(rows.iter().map(|row| line(row)));
    lines.join("\n") + "\n"
}

#[test]
fn what_would_be_markup_is_none() {
    assert_eq!(prose("a <b>\n  and `<c>`"), "a &lt;b> and `<c>`");
    assert_eq!(
        table(["x", "y"], &[["a|b".into(), String::new()]]),
        "| x | y |\n| --- | --- |\n| a\\|b | |\n"
    );
}
