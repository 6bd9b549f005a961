//! `cluster.json`, the state of a data folder: `down` and `status` use it to find a cluster's processes, even
//! after its supervisor was killed.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    addresses::Addresses,
    component::Component,
    executable::release_in,
    files::{read, write_public},
    procs::{ProcessId, boot_id},
    release::Release,
};

/// Format of the data folder. A folder with another number was made by another version.
pub const FORMAT_VERSION: u32 = 1;

/// Content of `cluster.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// [`FORMAT_VERSION`] of the writing program.
    pub format_version: u32,
    /// Kubernetes version of the objects in etcd, such as `1.36.3`; empty before the first start.
    pub kubernetes_version: String,
    /// Folder of the binaries at the last start.
    pub binaries: Option<PathBuf>,
    /// Listen addresses of the running cluster or of its last start. A restart reuses ports and networks that are still free.
    #[serde(flatten)]
    pub addresses: Addresses,
    /// The supervisor process.
    pub supervisor: Option<ProcessId>,
    /// True if everything that the supervisor was asked for is up.
    #[serde(default)]
    pub ready: bool,
    /// Number of nodes at the end of the last start with an operator.
    #[serde(default)]
    pub nodes: Option<i32>,
    /// Boot of this machine in which the processes run.
    #[serde(default)]
    pub boot_id: Option<String>,
    /// Processes by component.
    #[serde(default)]
    pub components: BTreeMap<Component, ProcessId>,
}

/// A state file that is no state of any format. Its text names the command that removes the cluster.
#[derive(Debug)]
pub(super) struct Damaged {
    path: PathBuf,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.path.parent().unwrap_or(&self.path).display();
        write!(
            f,
            "{} is damaged (kube-node down --delete --data-dir {dir} ends what still runs and deletes the cluster)",
            self.path.display()
        )
    }
}

impl State {
    /// State of a cluster that never ran.
    pub(super) fn new() -> Self {
        Self { format_version: FORMAT_VERSION, boot_id: Some(boot_id()), ..Self::default() }
    }

    /// Reads the file. The format is checked first: in another format the other fields may have any shape.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&read(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> anyhow::Result<Self> {
        let damaged = || Damaged { path: path.to_owned() };
        let state: Value = serde_json::from_str(text).with_context(damaged)?;
        let found = state["formatVersion"].as_u64().with_context(damaged)?;
        ensure!(
            found == u64::from(FORMAT_VERSION),
            "the data folder has format {found}, this version of kube-node reads format {FORMAT_VERSION}: use another --data-dir, or delete it with the version that made it"
        );
        let mut state: Self = serde_json::from_value(state).with_context(damaged)?;
        state.forget_other_boots(&boot_id());
        Ok(state)
    }

    /// Forgets the processes that an earlier boot of this machine has ended: their pids and start times may be those of others.
    fn forget_other_boots(&mut self, boot_id: &str) {
        if self.boot_id.as_deref().is_some_and(|recorded| recorded != boot_id) {
            (self.supervisor, self.ready) = (None, false);
            self.components.clear();
        }
        self.boot_id = Some(boot_id.to_owned());
    }

    /// The release to run: the one that is asked for, that of the last start, or the default one.
    pub(super) fn release(&self, asked: Option<&'static Release>) -> anyhow::Result<&'static Release> {
        let found = &self.kubernetes_version;
        match asked {
            Some(asked) => self.check_kubernetes(asked.version()).map(|()| asked),
            None if found.is_empty() => Ok(<&Release>::default()),
            None => Release::like(found).with_context(|| {
                format!(
                    "the data folder holds a cluster of Kubernetes {found}, and this version of kube-node has {}: name programs of {found} with --binaries, use another --data-dir, or remove it with `kube-node down --delete`",
                    Release::list()
                )
            }),
        }
    }

    /// Checks that the folder's Kubernetes, if there is one, has the same minor release as this version. No folder is upgraded:
    /// Kubernetes upgrades a control plane component by component, and a cluster for tests is made anew in seconds.
    pub(super) fn check_kubernetes(&self, wanted: &str) -> anyhow::Result<()> {
        let found = &self.kubernetes_version;
        ensure!(
            found.is_empty() || release_in(found) == release_in(wanted),
            "the data folder holds a cluster of Kubernetes {found}, which {wanted} does not run: use another --data-dir, or remove it with `kube-node down --delete`"
        );
        Ok(())
    }

    /// Writes the file atomically.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        write_public(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }
}

/// The state and its file, shared by several tasks.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    state: Mutex<State>,
}

impl StateFile {
    /// A state for the file at `path`. The file is first written by [`Self::change`].
    pub(super) fn new(path: PathBuf, state: State) -> Self {
        Self { path, state: Mutex::new(state) }
    }

    /// Changes the state and writes the file.
    pub fn change(&self, change: impl FnOnce(&mut State)) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        change(&mut state);
        state.save(&self.path)
    }

    /// Number of nodes at the end of the last start with an operator.
    pub fn last_nodes(&self) -> Option<i32> {
        self.state.lock().nodes
    }

    /// Records the process of a component; `None` removes the record.
    pub fn record(&self, component: Component, id: Option<ProcessId>) -> anyhow::Result<()> {
        self.change(|state| {
            state.components.remove(&component);
            state.components.extend(id.map(|id| (component, id)));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::KUBERNETES_VERSION;

    #[test]
    fn round_trip() {
        let mut state = State::new();
        "1.36.3".clone_into(&mut state.kubernetes_version);
        state.components.insert(Component::KubeApiserver, ProcessId { pid: 7, start_time: 9 });
        state.addresses.ports.apiserver = 6443;
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains("\"kube-apiserver\""), "{text}");
        assert_eq!(State::parse(&text, Path::new("x")).unwrap(), state);
    }

    #[test]
    fn another_format_is_named_even_when_the_rest_is_unknown() {
        let error = |text| State::parse(text, Path::new("/data/cluster.json")).unwrap_err().to_string();
        assert!(error(r#"{"formatVersion": 99, "components": 3}"#).contains("has format 99"));
        assert!(
            error("{")
                .starts_with("/data/cluster.json is damaged (kube-node down --delete --data-dir /data ")
        );
    }

    #[test]
    fn processes_of_an_earlier_boot_are_forgotten() {
        let process = ProcessId::current();
        let mut state = State { supervisor: process, ready: true, ..State::new() };
        state.components.extend(process.map(|id| (Component::Etcd, id)));
        let written = |state: &State| serde_json::to_string(state).unwrap();
        let read = |text: &str| State::parse(text, Path::new("x")).unwrap();
        assert_eq!(read(&written(&state)), state);
        // A pid and a start time occur again in another boot.
        state.boot_id = Some("another".to_owned());
        let after = read(&written(&state));
        assert_eq!((after.supervisor, after.ready, after.components.len()), (None, false, 0));
        assert_eq!(after.boot_id, Some(boot_id()));
        // A state of a version that did not write the boot is believed.
        state.boot_id = None;
        assert_eq!(read(&written(&state)).supervisor, process);
    }

    #[test]
    fn a_folder_keeps_its_minor_release() {
        let release = |found: &str, asked: Option<&str>| {
            let state = State { kubernetes_version: found.to_owned(), ..State::new() };
            state.release(asked.map(|asked| Release::parse(asked).unwrap())).map(Release::version)
        };
        assert_eq!(release("", None).unwrap(), KUBERNETES_VERSION);
        assert_eq!(release("", Some("1.35")).unwrap(), "1.35.4");
        assert_eq!(release("1.37.0", None).unwrap(), "1.37.2");
        assert_eq!(release("1.37.0", Some("1.37")).unwrap(), "1.37.2");
        let error = release("1.36.3", Some("1.37")).unwrap_err().to_string();
        assert!(
            error.starts_with("the data folder holds a cluster of Kubernetes 1.36.3, which 1.37.2"),
            "{error}"
        );
        let error = release("1.3.36", None).unwrap_err().to_string();
        assert!(
            error.contains("this version of kube-node has 1.35.4, 1.36.3, 1.37.2: name programs"),
            "{error}"
        );
    }
}
