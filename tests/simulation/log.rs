//! The log of a run, and what a violation shows of it.

use std::{collections::BTreeSet, fmt, time::Duration};

use kube_node_testing::api_server::Change;

use crate::{
    fault::Fault,
    objects::{difference, name},
    sent::Sent,
};

/// Lines of the log that a violation shows, and requests.
pub const SHOWN: usize = 40;
/// Most characters of such a request.
const LENGTH: usize = 300;

/// Entry of the log: its time since the beginning, and what happened.
#[derive(Clone, Debug)]
pub struct Entry(pub Duration, pub Happened);

/// What happened.
#[derive(Clone, Debug)]
pub enum Happened {
    Note(String),
    /// A change of an object, and the process that made it. Events are left out: kube's recorder names them by the time
    /// of day.
    Change(Change, Option<String>),
}

/// A line of text. It is written when somebody reads the log, since most logs are read by nobody.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} ", self.0.as_secs_f64())?;
        let (change, by) = match &self.1 {
            Happened::Note(text) => return f.write_str(text),
            Happened::Change(change, by) => (change, by.as_deref().unwrap_or("others")),
        };
        let verb = match (&change.before, change.deleted) {
            (_, true) => "deletes",
            (None, _) => "creates",
            (Some(_), _) => "changes",
        };
        let (kind, name) = (change.after["kind"].as_str().unwrap_or_default(), name(&change.after));
        write!(f, "{by} {verb} {kind} {name}: {}", difference(change))
    }
}

/// A request with its fault, in one line.
pub fn line(at: Duration, sent: &Sent, fault: Option<Fault>) -> String {
    let fault = fault.map(|fault| format!(" ({fault})")).unwrap_or_default();
    let Sent { process, method, path, .. } = sent;
    format!("{:>9.3} {process} {method} {path}{fault} {}", at.as_secs_f64(), sent.json())
}

/// The last requests about the objects that a violation names, with their faults.
pub fn about(what: &str, sent: &[(Duration, Sent, Option<Fault>)]) -> String {
    let ends = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '.';
    let names: BTreeSet<&str> = what.split(ends).filter(|word| word.contains('-')).collect();
    let is_about = |sent: &Sent| sent.path.split('/').any(|part| names.contains(part));
    let requests = sent.iter().rev().filter(|(_, sent, _)| is_about(sent)).take(SHOWN);
    let mut lines: Vec<String> =
        requests.map(|(at, sent, fault)| line(*at, sent, *fault).chars().take(LENGTH).collect()).collect();
    lines.reverse();
    if lines.is_empty() { String::new() } else { format!("\nrequests about it:\n{}", lines.join("\n")) }
}
