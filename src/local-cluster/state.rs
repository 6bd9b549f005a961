//! `cluster.json`: what a data folder holds, so that `down` and `status` find the processes of a cluster, also after
//! its supervisor was killed.

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

/// Format of the data folder; another number is somebody else's.
pub const FORMAT_VERSION: u32 = 1;

/// Content of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// [`FORMAT_VERSION`] of the program that wrote it.
    pub format_version: u32,
    /// Version of Kubernetes whose objects are in etcd, such as `1.36.3`.
    pub kubernetes_version: String,
    /// Where the binaries came from at the last start.
    #[serde(default)]
    pub binaries: Option<PathBuf>,
    /// Ports on 127.0.0.1, kept from start to start where they are still free.
    #[serde(default)]
    pub ports: Option<Ports>,
    /// The networks of the real node, where there is one; kept from start to start where they are still free.
    #[serde(default)]
    pub network: Option<Network>,
    /// Where kube-apiserver is reached besides 127.0.0.1, at the same port.
    #[serde(default)]
    pub listen_addresses: Vec<IpAddr>,
    /// The process that looks after the components.
    #[serde(default)]
    pub supervisor: Option<ProcessId>,
    /// Whether the supervisor has everything up that it was asked for.
    #[serde(default)]
    pub ready: bool,
    /// Processes of the components.
    #[serde(default)]
    pub components: BTreeMap<Component, ProcessId>,
}

/// Why a state file does not serve.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not JSON of this kind.
    #[error("{} is damaged: stop what still runs, then delete the folder", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another version of kube-node wrote it.
    #[error(
        "the data folder has format {found}, this version of kube-node reads format {FORMAT_VERSION}: use another --data-dir, or delete it with the version that made it"
    )]
    Format {
        /// The format it has.
        found: u32,
    },
    /// It holds objects of a Kubernetes that this one must not open.
    #[error(
        "the data folder holds a cluster of Kubernetes {found}, this version runs {wanted}: use another --data-dir, or remove it with `kube-node down --delete`"
    )]
    Kubernetes {
        /// The version it has.
        found: String,
        /// The version we run.
        wanted: String,
    },
}

impl State {
    /// A cluster that never ran.
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

    /// Reads the file; the format is checked first, the rest may have any shape in another format.
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

    /// Where the cluster listens, or did at its last start.
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

    /// Whether this version may open the cluster's objects: the same minor release.
    pub fn check_kubernetes(&self, wanted: &str) -> Result<(), StateError> {
        let minor = |version: &str| version.rsplit_once('.').map(|(minor, _)| minor.to_owned());
        if minor(&self.kubernetes_version) == minor(wanted) {
            return Ok(());
        }
        Err(StateError::Kubernetes { found: self.kubernetes_version.clone(), wanted: wanted.to_owned() })
    }

    /// Writes the file, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|source| StateError::Damaged { path: path.to_owned(), source })?;
        Ok(write_public(path, &(text + "\n"))?)
    }
}

/// The state and its file, changed by several tasks.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: Mutex<State>,
}

impl StateFile {
    /// The file at `path`, with this content from the next [`Self::change`] on.
    #[must_use]
    pub fn new(path: PathBuf, state: State) -> Self {
        Self { path, state: Mutex::new(state) }
    }

    /// Changes the state and writes it.
    pub fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), StateError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.save(&self.path)
    }

    /// Notes the process of a component, or that there is none.
    pub fn note(&self, component: Component, id: Option<ProcessId>) -> Result<(), StateError> {
        self.change(|state| {
            match id {
                Some(id) => state.components.insert(component, id),
                None => state.components.remove(&component),
            };
        })
    }

    /// The state as it is now.
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
