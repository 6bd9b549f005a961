//! The folder of a machine in a pod of its own: reads the [files](kube_node_api::machine_files) that its provider mounts.
//!
//! The provider writes the texts (annotations of the pod, which the kubelet turns into files);
//! `kube-node hollow-node` and `kube-node kubemark-proxy` read the files. [`SETTINGS`] changes while the machine
//! lives.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use kube_node_api::machine_files::{BOOTSTRAP, MACHINE, MachineDescription, MachineSettings, SETTINGS};
use serde::de::DeserializeOwned;
use tokio::time::interval;
use tracing::warn;

/// Interval of reading the settings. The kubelet replaces files by moving symbolic links, up to a minute
/// late; one small read costs less than following those links.
const POLL: Duration = Duration::from_secs(1);

/// Folder of a machine.
#[derive(Clone, Debug)]
pub struct MachineDir {
    path: PathBuf,
}

impl MachineDir {
    /// The folder at `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Path of the bootstrap kubeconfig.
    pub fn bootstrap(&self) -> PathBuf {
        self.path.join(BOOTSTRAP)
    }

    /// Description of the machine of `node`.
    pub fn machine(&self, node: &str) -> anyhow::Result<MachineDescription> {
        let path = self.path.join(MACHINE);
        let machine: MachineDescription = parse(&path, &read(&path)?)?;
        let found = &machine.node;
        ensure!(found == node, "{} is that of Node {found}, and --node is {node}", path.display());
        Ok(machine)
    }

    /// Current settings.
    pub fn settings(&self) -> anyhow::Result<MachineSettings> {
        let path = self.path.join(SETTINGS);
        parse(&path, &read(&path)?)
    }

    /// Passes the settings to `apply` at the start and after each change, for as long as the future lives.
    /// Unreadable settings are logged once, and the former ones stay in effect.
    pub async fn follow(&self, mut apply: impl FnMut(MachineSettings)) {
        let path = self.path.join(SETTINGS);
        let mut last = Err(String::new());
        let mut polls = interval(POLL);
        loop {
            polls.tick().await;
            let now = read(&path).map_err(|error| format!("{error:#}"));
            if now == last {
                continue;
            }
            last = now;
            let settings = last.as_ref().map_err(Clone::clone);
            match settings.and_then(|text| parse(&path, text).map_err(|error| format!("{error:#}"))) {
                Ok(settings) => apply(settings),
                Err(error) => warn!(error, "the settings before go on"),
            }
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| {
        format!("cannot read {}: --machine-dir must name the folder that the provider mounts", path.display())
    })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).with_context(|| format!("{} is not valid", path.display()))
}

#[cfg(test)]
mod tests {
    use kube_node_api::Resources;

    use super::*;

    #[test]
    fn the_files_read_back_and_mistakes_are_named() {
        let path = std::env::temp_dir().join(format!("kube-node-machine-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let dir = MachineDir::new(&path);
        assert!(dir.machine("a").unwrap_err().to_string().contains("--machine-dir"));
        let machine = MachineDescription {
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
        assert!(dir.settings().unwrap_err().to_string().ends_with("settings.json is not valid"));
        fs::remove_dir_all(&path).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn settings_are_applied_when_they_change_and_kept_when_they_cannot_be_read() {
        let path = std::env::temp_dir().join(format!("kube-node-settings-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let write = |text: &str| fs::write(path.join(SETTINGS), text).unwrap();
        let applied = std::cell::RefCell::new(Vec::new());
        write(r#"{"containers":{"exitCode":1}}"#);
        let dir = MachineDir::new(&path);
        let following = dir.follow(|settings| applied.borrow_mut().push(settings.containers.exit_code));
        let writing = async {
            let polls = async |count| tokio::time::sleep(POLL * count).await;
            polls(3).await;
            assert_eq!(*applied.borrow(), [Some(1)], "once");
            write("half");
            polls(3).await;
            assert_eq!(*applied.borrow(), [Some(1)], "what was set goes on");
            write("{}");
            polls(3).await;
            assert_eq!(*applied.borrow(), [Some(1), None]);
        };
        tokio::select! { () = following => {}, () = writing => {} }
        fs::remove_dir_all(&path).unwrap();
    }
}
