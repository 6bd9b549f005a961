//! Files for a machine in a pod of its own, in the folder that its provider mounts.
//!
//! The provider writes the texts (annotations of the pod, which the kubelet turns into files);
//! `kube-node hollow-node` and `kube-node kubemark-proxy` read the files. [`SETTINGS`] changes while the machine
//! lives.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use kube_node_api::{ContainerDefaults, Failures, Resources};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::interval;
use tracing::warn;

/// Bootstrap kubeconfig; see [`crate::identity::token`].
pub const BOOTSTRAP: &str = "bootstrap.kubeconfig";
/// Description of the machine: a [`Machine`] as JSON.
pub const MACHINE: &str = "machine.json";
/// Settings that change in place: [`Settings`] as JSON.
pub const SETTINGS: &str = "settings.json";
/// Interval of reading the settings. The kubelet replaces files by moving symbolic links, up to a minute
/// late; one small read costs less than following those links.
const POLL: Duration = Duration::from_secs(1);

/// Description of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Name of its Node.
    pub node: String,
    /// UID of its Node.
    pub uid: String,
    /// Capacity of the machine.
    pub capacity: Resources,
    /// Part of the capacity that pods may use.
    pub allocatable: Resources,
    /// Version of its kubelet, such as `v1.36.3`.
    pub kubelet_version: String,
    /// Name and version of its container runtime, such as `containerd://2.1.0`.
    pub container_runtime: String,
    /// Commands that `/bin/sh -c` runs one after the other, before the kubelet starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Settings that change while a machine lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Fault injection; None for a machine that stays healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Default behaviour of its containers, which a pod may override.
    #[serde(default)]
    pub containers: ContainerDefaults,
}

/// Unusable file of the folder.
#[derive(Debug, thiserror::Error)]
pub enum MachineDirError {
    /// The file cannot be read.
    #[error("cannot read {}: --machine-dir must name the folder that the provider mounts", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file has invalid content.
    #[error("{} is not valid", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// The file belongs to another machine.
    #[error("{} is that of Node {found}, and --node is {wanted}", path.display())]
    OtherNode {
        /// Path of the file.
        path: PathBuf,
        /// Node that the file names.
        found: String,
        /// Node that was expected.
        wanted: String,
    },
}

/// Folder of a machine.
#[derive(Clone, Debug)]
pub struct MachineDir {
    path: PathBuf,
}

impl MachineDir {
    /// The folder at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Path of the bootstrap kubeconfig.
    #[must_use]
    pub fn bootstrap(&self) -> PathBuf {
        self.path.join(BOOTSTRAP)
    }

    /// Description of the machine of `node`.
    pub fn machine(&self, node: &str) -> Result<Machine, MachineDirError> {
        let path = self.path.join(MACHINE);
        let machine: Machine = parse(&path, &read(&path)?)?;
        if machine.node == node {
            Ok(machine)
        } else {
            Err(MachineDirError::OtherNode { path, found: machine.node, wanted: node.to_owned() })
        }
    }

    /// Current settings.
    pub fn settings(&self) -> Result<Settings, MachineDirError> {
        self.parsed(&self.settings_text()?)
    }

    /// Passes the settings to `tell` at the start and after each change, for as long as the future lives.
    /// Unreadable settings are logged once, and the former ones stay in effect.
    pub async fn follow(&self, mut tell: impl FnMut(Settings)) {
        let mut last = Err(String::new());
        let mut turns = interval(POLL);
        loop {
            turns.tick().await;
            let now = self.settings_text().map_err(|error| error.to_string());
            if now == last {
                continue;
            }
            let settings = match &now {
                Ok(text) => self.parsed(text).map_err(|error| format!("{error}: {}", cause(&error))),
                Err(error) => Err(error.clone()),
            };
            match settings {
                Ok(settings) => tell(settings),
                Err(error) => warn!(error, "the settings before go on"),
            }
            last = now;
        }
    }

    fn settings_text(&self) -> Result<String, MachineDirError> {
        read(&self.path.join(SETTINGS))
    }

    fn parsed(&self, text: &str) -> Result<Settings, MachineDirError> {
        parse(&self.path.join(SETTINGS), text)
    }
}

fn cause(error: &MachineDirError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

fn read(path: &Path) -> Result<String, MachineDirError> {
    fs::read_to_string(path).map_err(|source| MachineDirError::Read { path: path.to_owned(), source })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, MachineDirError> {
    serde_json::from_str(text).map_err(|source| MachineDirError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_read_back_and_mistakes_are_named() {
        let path = std::env::temp_dir().join(format!("kube-node-machine-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let dir = MachineDir::new(&path);
        assert!(dir.machine("a").unwrap_err().to_string().contains("--machine-dir"));
        let machine = Machine {
            node: "a".to_owned(),
            uid: "u".to_owned(),
            capacity: Resources::new(),
            allocatable: Resources::new(),
            kubelet_version: "v1.36.3".to_owned(),
            container_runtime: "containerd://2.1.0".to_owned(),
            commands: vec!["true".to_owned()],
        };
        fs::write(path.join(MACHINE), serde_json::to_vec(&machine).unwrap()).unwrap();
        assert_eq!(dir.machine("a").unwrap(), machine);
        assert!(dir.machine("b").unwrap_err().to_string().contains("Node a, and --node is b"));
        fs::write(path.join(SETTINGS), r#"{"failures":{"unhealthyDuration":"5s"}}"#).unwrap();
        assert_eq!(dir.settings().unwrap().failures.unwrap().unhealthy_duration.0.as_secs(), 5);
        fs::write(path.join(SETTINGS), r#"{"failures":{"unhealthyDuration":"5"}}"#).unwrap();
        assert!(matches!(dir.settings(), Err(MachineDirError::Invalid { .. })));
        fs::remove_dir_all(&path).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn settings_are_told_when_they_change_and_kept_when_they_cannot_be_read() {
        let path = std::env::temp_dir().join(format!("kube-node-settings-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let write = |text: &str| fs::write(path.join(SETTINGS), text).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        write(r#"{"containers":{"exitCode":1}}"#);
        let dir = MachineDir::new(&path);
        let following = dir.follow(|settings| told.borrow_mut().push(settings.containers.exit_code));
        let writing = async {
            let polls = async |count| tokio::time::sleep(POLL * count).await;
            polls(3).await;
            assert_eq!(*told.borrow(), [Some(1)], "once");
            write("half");
            polls(3).await;
            assert_eq!(*told.borrow(), [Some(1)], "what was set goes on");
            write("{}");
            polls(3).await;
            assert_eq!(*told.borrow(), [Some(1), None]);
        };
        tokio::select! { () = following => {}, () = writing => {} }
        fs::remove_dir_all(&path).unwrap();
    }
}
