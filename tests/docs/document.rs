//! A document in Markdown, as far as it is tested: its fenced blocks, headings, links and code.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders with documents.
const FOLDERS: [&str; 6] = ["", "docs", "docs/decisions", "docs/reference", "examples", "charts/kube-node"];

/// A document.
pub struct Document {
    /// Its path in the repository.
    pub path: String,
    /// Its fenced blocks.
    pub blocks: Vec<Block>,
    /// Names that links may have behind `#`.
    pub anchors: Vec<String>,
    /// Line and target of each link.
    pub links: Vec<(usize, String)>,
    /// Line and text of each piece of code outside of blocks.
    pub code: Vec<(usize, String)>,
}

/// A fenced block.
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// What it holds.
    pub language: String,
    /// Why it is not run.
    pub ignore: Option<String>,
    /// Blanks before its fence, as in an item of a list.
    indent: String,
    /// Without the fences.
    pub text: String,
}

/// A command of a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// Its line, from 1.
    pub line: usize,
    /// As a shell takes it.
    pub text: String,
}

impl Document {
    /// All documents of the repository, by their path in it.
    pub fn all(root: &Path) -> Vec<Self> {
        let mut paths: Vec<PathBuf> =
            FOLDERS.into_iter().flat_map(|folder| files(root, folder, "md")).collect();
        paths.sort();
        paths.iter().map(|path| Self::read(root, path.to_str().unwrap())).collect()
    }

    pub fn read(root: &Path, path: &str) -> Self {
        Self::parse(path, &fs::read_to_string(root.join(path)).unwrap())
    }

    fn parse(path: &str, text: &str) -> Self {
        let mut document =
            Self { path: path.to_owned(), blocks: vec![], anchors: vec![], links: vec![], code: vec![] };
        let mut open: Option<Block> = None;
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
            match (&mut open, rest.strip_prefix("```")) {
                (Some(_), Some(_)) => document.blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(line.strip_prefix(block.indent.as_str()).unwrap_or(line));
                    block.text.push('\n');
                }
                (None, Some(info)) => {
                    let mut parts = info.split(',');
                    let language = parts.next().unwrap_or_default().to_owned();
                    let ignore = parts.find_map(|word| word.strip_prefix("ignore=")).map(str::to_owned);
                    let indent = indent.to_owned();
                    open = Some(Block { line: number, language, ignore, indent, text: String::new() });
                }
                (None, None) => {
                    if let Some(hidden) =
                        line.strip_prefix("<!-- $ ").and_then(|line| line.strip_suffix(" -->"))
                    {
                        let (language, text) = ("console".to_owned(), format!("$ {hidden}\n"));
                        let indent = String::new();
                        document.blocks.push(Block { line: at, language, ignore: None, indent, text });
                    }
                    if line.starts_with('#') {
                        document.anchors.push(anchor(line.trim_start_matches('#').trim()));
                    }
                    document.links.extend(links(line).into_iter().map(|link| (number, link)));
                    let code = line.split('`').skip(1).step_by(2);
                    document.code.extend(code.map(|text| (number, text.to_owned())));
                }
            }
        }
        assert!(open.is_none(), "{path}: a block has no end");
        document
    }
}

impl Block {
    /// Its commands, one after the other.
    pub fn commands(&self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        let mut goes_on = false;
        // In what is not run with the others, as root.
        let of_root = |line: &str| self.ignore.is_some() && line.starts_with("# ");
        for (at, line) in self.text.lines().enumerate() {
            if let Some(command) = line.strip_prefix("$ ").or_else(|| of_root(line).then(|| &line[2..])) {
                commands.push(Command { line: self.line + 1 + at, text: command.to_owned() });
                goes_on = command.ends_with('\\');
            } else if let Some(last) = commands.last_mut()
                && (goes_on || line.starts_with("> "))
            {
                last.text.push('\n');
                last.text.push_str(line.strip_prefix("> ").unwrap_or(line));
                goes_on = line.ends_with('\\');
            }
        }
        commands
    }
}

/// The files in a folder whose names end so, by their path in the repository.
pub fn files(root: &Path, folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    files.map(|path| path.strip_prefix(root).unwrap().to_owned()).collect()
}

/// As GitHub and mdBook name a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Targets of the links of a line; what stands in backticks is none.
fn links(line: &str) -> Vec<String> {
    let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn commands_are_told_from_what_they_print() {
    let text = "x\n```console,ignore=stays\n$ a \\\n  b\nprinted\n# cat <<E\n> c\n> E\nprinted\n```\n```console\n# x\n```\n";
    let document = Document::parse("x.md", text);
    assert!(document.blocks[1].commands().is_empty());
    let block = &document.blocks[0];
    assert_eq!((block.line, block.ignore.as_deref()), (2, Some("stays")));
    let command = |line, text: &str| Command { line, text: text.to_owned() };
    assert_eq!(block.commands(), [command(3, "a \\\n  b"), command(6, "cat <<E\nc\nE")]);
}

#[test]
fn a_block_in_an_item_of_a_list_is_found() {
    let document = Document::parse("x.md", "- x:\n\n  ```console\n  $ a \\\n    b\n  ```\n");
    assert_eq!(document.blocks[0].commands(), [Command { line: 4, text: "a \\\n  b".to_owned() }]);
}

#[test]
fn what_a_reader_has_done_before_is_hidden() {
    let document = Document::parse("x.md", "<!-- $ up -->\n<!-- no -->\n");
    assert_eq!(document.blocks.len(), 1);
    assert_eq!(document.blocks[0].commands(), [Command { line: 1, text: "up".to_owned() }]);
}

#[test]
fn links_and_headings_are_found() {
    let document = Document::parse("x.md", "## What it `is`, now\n[a](b.md#c) and `[no](link)`, [d](e)\n");
    assert_eq!(document.anchors, ["what-it-is-now"]);
    assert_eq!(document.links, [(2, "b.md#c".to_owned()), (2, "e".to_owned())]);
    assert_eq!(document.code, [(1, "is".to_owned()), (2, "[no](link)".to_owned())]);
}
