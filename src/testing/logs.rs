//! What the clusters of this test binary say of themselves when a test fails: the last lines of the logs of their processes
//! (control plane, operators, workers), and the last objects and events.
//!
//! A failed wait prints both, and marks the folder of each cluster, so that the logs of the failed run outlive the next run.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// Lines of each log that are printed.
const LINES: usize = 8;
/// Bytes at the end of a log that are read.
const BYTES: u64 = 8 << 10;
/// Marks a folder whose logs belong to a failed test.
const FAILED: &str = "failed";

/// Objects that are printed, the youngest last: arguments of kubectl.
const OBJECTS: [&[&str]; 5] = [
    &["get", "nodesets", "-o", r#"jsonpath={range .items[*]}{.metadata.name}{" "}{.status}{"\n"}{end}"#],
    &["get", "nodeclasses", "-o", "wide"],
    &["get", "nodes"],
    &["get", "pods", "--all-namespaces", "-o", "wide"],
    &["get", "events", "--all-namespaces"],
];
/// Lines of objects of one kind that are printed.
const OBJECT_LINES: usize = 20;

/// Folders of clusters that were started, each with logs of its own, and the program that started it.
static CLUSTERS: Mutex<Vec<(PathBuf, &'static str)>> = Mutex::new(Vec::new());

/// Registers the folder of a cluster.
pub(crate) fn register(folder: &Path, program: &'static str) {
    let mut clusters = CLUSTERS.lock().unwrap();
    if !clusters.iter().any(|(known, _)| known == folder) {
        clusters.push((folder.to_owned(), program));
    }
}

/// Prints the report of all clusters, and keeps their logs.
pub fn print_and_keep() {
    for (folder, _) in CLUSTERS.lock().unwrap().iter().filter(|(folder, _)| folder.exists()) {
        let _ = fs::write(folder.join(FAILED), "");
    }
    println!("{}", report());
}

/// The last lines of all logs and the last objects of all clusters.
pub fn report() -> String {
    let clusters = CLUSTERS.lock().unwrap().clone();
    let mut text = String::new();
    for (folder, program) in clusters.iter().filter(|(folder, _)| folder.exists()) {
        for log in logs(folder) {
            let _ = writeln!(text, "--- {}\n{}", log.display(), tail(&log));
        }
        for arguments in OBJECTS {
            let _ = writeln!(
                text,
                "--- {} of {}\n{}",
                arguments[1],
                folder.display(),
                objects(folder, program, arguments)
            );
        }
    }
    text
}

/// What kubectl prints of objects, or why it prints nothing.
fn objects(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut kubectl = Command::new(program);
    kubectl.args(["kubectl", "--data-dir"]).arg(folder).args(["--", "--request-timeout=5s"]);
    kubectl.args(arguments).args(["--sort-by", ".metadata.creationTimestamp"]);
    match kubectl.output() {
        Ok(output) if output.status.success() => {
            last_lines(&String::from_utf8_lossy(&output.stdout), OBJECT_LINES)
        }
        Ok(output) => format!("({})", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => format!("({error})"),
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Returns true if a test failed with this folder.
pub(crate) fn is_kept(folder: &Path) -> bool {
    folder.join(FAILED).exists()
}

/// Deletes all of a folder but its logs.
pub(crate) fn delete_all_but_logs(folder: &Path) {
    let kept = |path: &Path| path.ends_with("logs") || path.ends_with(FAILED) || is_log(path);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if kept(&path) {
            continue;
        }
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

/// The address on which a process listens, as its log reports it beside `message`; None until then. Processes are started
/// with port 0: a number chosen before could be taken by somebody else's connection.
pub fn reported_address(log: &Path, message: &str) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().find(|line| line.contains(message))?;
    let address = line.split("address").nth(1)?.trim_start_matches(['=', '"', ':']);
    let end = address.find(|c: char| c != '.' && c != ':' && c != '[' && c != ']' && !c.is_ascii_hexdigit());
    address[..end.unwrap_or(address.len())].parse().ok()
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

fn logs(folder: &Path) -> Vec<PathBuf> {
    let mut logs: Vec<PathBuf> = [folder.to_owned(), folder.join("logs")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| is_log(path))
        .collect();
    logs.sort();
    logs
}

fn tail(log: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let text = match read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("(unreadable: {error})"),
    };
    last_lines(&text, LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("kube-node-logs-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("logs")).unwrap();
        folder
    }

    #[test]
    fn an_address_is_read_from_text_and_json_logs() {
        let folder = folder("address");
        let log = folder.join("a.log");
        assert_eq!(reported_address(&log, "listens"), None);
        for line in [
            "2026-01-01T00:00:00Z  INFO listens address=127.0.0.1:4711",
            r#"{"level":"INFO","message":"listens","address":"127.0.0.1:4711"}"#,
        ] {
            fs::write(&log, format!("other address=127.0.0.1:1\n{line}\n")).unwrap();
            assert_eq!(reported_address(&log, "listens"), "127.0.0.1:4711".parse().ok(), "{line}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn logs_outlive_the_data_of_a_failed_run() {
        let folder = folder("kept");
        fs::create_dir(folder.join("etcd")).unwrap();
        for file in ["etcd/data", "cluster.json", "operator-a.log", "logs/etcd.log"] {
            fs::write(folder.join(file), "line\n".repeat(20)).unwrap();
        }
        assert!(!is_kept(&folder));
        fs::write(folder.join(FAILED), "").unwrap();
        delete_all_but_logs(&folder);
        assert!(is_kept(&folder) && !folder.join("etcd").exists() && !folder.join("cluster.json").exists());
        let kept = logs(&folder);
        assert_eq!(kept, [folder.join("logs/etcd.log"), folder.join("operator-a.log")]);
        assert_eq!(tail(&kept[0]).lines().count(), LINES);
        fs::remove_dir_all(folder).unwrap();
    }
}
