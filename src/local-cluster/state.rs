//! `cluster.json`, the state of a data folder: `down` and `status` use it to find a cluster's processes, even
//! after its supervisor was killed.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{
    component::{Addresses, Component},
    files::{FileError, read, write_public},
    ports::Ports,
    procs::ProcessId,
    real_node::Network,
};

/// Format of the data folder. A folder with another number was made by another version.
pub const FORMAT_VERSION: u32 = 1;

/// Content of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// [`FORMAT_VERSION`] of the writing program.
    pub format_version: u32,
    /// Kubernetes version of the objects in etcd, such as `1.36.3`.
    pub kubernetes_version: String,
    /// Folder of the binaries at the last start.
    #[serde(default)]
    pub binaries: Option<PathBuf>,
    /// Ports on 127.0.0.1. A restart reuses those that are still free.
    #[serde(default)]
    pub ports: Option<Ports>,
    /// Networks of the real node, if there is one. A restart reuses them if they are still free.
    #[serde(default)]
    pub network: Option<Network>,
    /// Addresses of kube-apiserver besides 127.0.0.1, at the same port.
    #[serde(default)]
    pub listen_addresses: Vec<IpAddr>,
    /// The supervisor process.
    #[serde(default)]
    pub supervisor: Option<ProcessId>,
    /// True if everything that the supervisor was asked for is up.
    #[serde(default)]
    pub ready: bool,
    /// Processes by component.
    #[serde(default)]
    pub components: BTreeMap<Component, ProcessId>,
}

/// Reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not valid JSON of this type.
    #[error("{} is damaged: stop what still runs, then delete the folder", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Parse error.
        source: serde_json::Error,
    },
    /// The file was written by a version of kube-node with another format.
    #[error(
        "the data folder has format {found}, this version of kube-node reads format {FORMAT_VERSION}: use another --data-dir, or delete it with the version that made it"
    )]
    Format {
        /// Format of the file.
        found: u32,
    },
    /// The folder holds objects of a Kubernetes release that this version must not open.
    #[error(
        "the data folder holds a cluster of Kubernetes {found}, this version runs {wanted}: use another --data-dir, or remove it with `kube-node down --delete`"
    )]
    Kubernetes {
        /// Kubernetes version of the folder.
        found: String,
        /// Kubernetes version of this program.
        wanted: String,
    },
}

impl State {
    /// State of a cluster that never ran.
    #[must_use]
    pub fn new(kubernetes_version: &str) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            kubernetes_version: kubernetes_version.to_owned(),
            binaries: None,
            ports: None,
            network: None,
            listen_addresses: Vec::new(),
            supervisor: None,
            ready: false,
            components: BTreeMap::new(),
        }
    }

    /// Reads the file. The format is checked first: in another format the other fields may have any shape.
    pub fn load(path: &Path) -> Result<Self, StateError> {
        Self::parse(&read(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Format {
            format_version: u32,
        }
        let damaged = |source| StateError::Damaged { path: path.to_owned(), source };
        let format: Format = serde_json::from_str(text).map_err(damaged)?;
        if format.format_version != FORMAT_VERSION {
            return Err(StateError::Format { found: format.format_version });
        }
        serde_json::from_str(text).map_err(damaged)
    }

    /// Listen addresses of the running cluster or of its last start.
    #[must_use]
    pub fn addresses(&self) -> Option<Addresses> {
        self.ports.map(|ports| Addresses {
            ports,
            network: self.network,
            further: self.listen_addresses.clone(),
            autoscaler: false,
            kubelets: None,
        })
    }

    /// Checks that the folder's Kubernetes has the same minor release as this version.
    pub fn check_kubernetes(&self, wanted: &str) -> Result<(), StateError> {
        let minor = |version: &str| version.rsplit_once('.').map(|(minor, _)| minor.to_owned());
        if minor(&self.kubernetes_version) == minor(wanted) {
            return Ok(());
        }
        Err(StateError::Kubernetes { found: self.kubernetes_version.clone(), wanted: wanted.to_owned() })
    }

    /// Writes the file atomically.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|source| StateError::Damaged { path: path.to_owned(), source })?;
        Ok(write_public(path, &(text + "\n"))?)
    }
}

/// The state and its file, shared by several tasks.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: Mutex<State>,
}

impl StateFile {
    /// A state for the file at `path`. The file is first written by [`Self::change`].
    #[must_use]
    pub fn new(path: PathBuf, state: State) -> Self {
        Self { path, state: Mutex::new(state) }
    }

    /// Changes the state and writes the file.
    pub fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), StateError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.save(&self.path)
    }

    /// Records the process of a component; `None` removes the record.
    pub fn note(&self, component: Component, id: Option<ProcessId>) -> Result<(), StateError> {
        self.change(|state| {
            match id {
                Some(id) => state.components.insert(component, id),
                None => state.components.remove(&component),
            };
        })
    }

    /// A copy of the present state.
    #[must_use]
    pub fn get(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut state = State::new("1.36.3");
        state.components.insert(Component::Apiserver, ProcessId { pid: 7, start_time: 9 });
        state.ports = Some(Ports { apiserver: 6443, ..Ports::default() });
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains("\"kube-apiserver\""), "{text}");
        assert_eq!(State::parse(&text, Path::new("x")).unwrap(), state);
    }

    #[test]
    fn another_format_is_named_even_when_the_rest_is_unknown() {
        let error = State::parse(r#"{"formatVersion": 99, "components": 3}"#, Path::new("x")).unwrap_err();
        assert!(matches!(error, StateError::Format { found: 99 }));
        let error = State::parse("{", Path::new("x")).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }));
    }

    #[test]
    fn same_minor_release_only() {
        let state = State::new("1.36.0");
        assert!(state.check_kubernetes("1.36.3").is_ok());
        assert!(state.check_kubernetes("1.37.3").is_err());
        assert!(state.check_kubernetes("1.3.36").is_err());
    }
}
