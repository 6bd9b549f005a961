//! Logs of the processes that this test binary started: clusters, operators, workers.
//!
//! A failed wait prints the last lines of each, and marks the folder of each cluster, so that the logs of the failed run
//! outlive the next run.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// Lines of each log that are printed.
const LINES: usize = 8;
/// Bytes at the end of a log that are read.
const BYTES: u64 = 8 << 10;
/// Marks a folder whose logs belong to a failed test.
const FAILED: &str = "failed";

/// Folders of clusters that were started, each with logs of its own.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Registers the folder of a cluster.
pub(crate) fn register(folder: &Path) {
    let mut folders = FOLDERS.lock().unwrap();
    if !folders.iter().any(|known| known == folder) {
        folders.push(folder.to_owned());
    }
}

/// Prints the last lines of all logs, and keeps these logs.
pub fn print_tails() {
    let folders = FOLDERS.lock().unwrap().clone();
    for folder in folders.iter().filter(|folder| folder.exists()) {
        let _ = fs::write(folder.join(FAILED), "");
        for log in logs(folder) {
            println!("--- {}\n{}", log.display(), tail(&log));
        }
    }
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
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
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
