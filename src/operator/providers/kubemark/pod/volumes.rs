//! Volumes of a machine's pod and their mounts.

use k8s_openapi::{
    api::core::v1::{
        DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, KeyToPath, ObjectFieldSelector,
        ProjectedVolumeSource, SecretProjection, SecretVolumeSource, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube_node_api::names;
use machine_agent::machine_dir;

use super::{File, KEY_BOOTSTRAP, KEY_PROXY_KUBECONFIG, name};
use crate::providers::MachineId;

/// Input of the machine, written by the provider.
pub(super) const MACHINE_DIR: &str = "/var/run/kube-node/machine";
/// State of the machine.
pub(super) const STATE_DIR: &str = "/var/run/kube-node/state";
/// Kubeconfig for the kubemark proxy, at the default path of an upstream kubemark.
pub(super) const PROXY_KUBECONFIG: &str = "/kubeconfig/kubeconfig";
/// Files as the Secret has them, and as the machine gets them.
pub(super) const SECRET_FILES_DIR: &str = "/var/run/kube-node/secret-files";
pub(super) const FILES_DIR: &str = "/var/run/kube-node/files";

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}

/// Writable folder: a machine's root file system is read-only.
pub(super) fn scratch() -> VolumeMount {
    mount("tmp", "/tmp", false)
}

/// Mounts of our own programs.
pub(super) fn own_mounts() -> Vec<VolumeMount> {
    vec![mount("machine", MACHINE_DIR, true), mount("state", STATE_DIR, false)]
}

/// Mounts of an upstream kubemark: neither token nor key.
pub(super) fn upstream_mounts() -> Vec<VolumeMount> {
    let kubeconfig = VolumeMount {
        sub_path: Some(KEY_PROXY_KUBECONFIG.to_owned()),
        ..mount("machine", PROXY_KUBECONFIG, true)
    };
    vec![kubeconfig, scratch()]
}

/// Mounts of the init container that installs the files.
pub(super) fn carrier_mounts() -> Vec<VolumeMount> {
    vec![mount("secret-files", SECRET_FILES_DIR, true), mount("files", FILES_DIR, false)]
}

/// Mounts of the files of the class.
pub(super) fn file_mounts(files: &[File]) -> Vec<VolumeMount> {
    let place =
        |file: &File| VolumeMount { sub_path: Some(file.key.clone()), ..mount("files", &file.path, true) };
    files.iter().map(place).collect()
}

/// All volumes of the pod.
pub(super) fn all(id: &MachineId, files: &[File]) -> Vec<Volume> {
    let named = |volume: &str| Volume { name: volume.to_owned(), ..Volume::default() };
    let annotation = |key: &str, path: &str| DownwardAPIVolumeFile {
        path: path.to_owned(),
        field_ref: Some(ObjectFieldSelector {
            field_path: format!("metadata.annotations['{key}']"),
            ..ObjectFieldSelector::default()
        }),
        ..DownwardAPIVolumeFile::default()
    };
    let item = |key: &str| KeyToPath { key: key.to_owned(), path: key.to_owned(), ..KeyToPath::default() };
    let machine = ProjectedVolumeSource {
        default_mode: Some(0o440),
        sources: Some(vec![
            VolumeProjection {
                secret: Some(SecretProjection {
                    name: name(id),
                    items: Some([KEY_BOOTSTRAP, KEY_PROXY_KUBECONFIG].map(item).to_vec()),
                    ..SecretProjection::default()
                }),
                ..VolumeProjection::default()
            },
            VolumeProjection {
                downward_api: Some(DownwardAPIProjection {
                    items: Some(vec![
                        annotation(names::ANNOTATION_MACHINE, machine_dir::MACHINE),
                        annotation(names::ANNOTATION_SETTINGS, machine_dir::SETTINGS),
                    ]),
                }),
                ..VolumeProjection::default()
            },
        ]),
    };
    // In memory: keys never touch a disk.
    let memory = |limit: &str| EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity(limit.to_owned())),
    };
    let mut volumes = vec![
        Volume { projected: Some(machine), ..named("machine") },
        Volume { empty_dir: Some(memory("1Mi")), ..named("state") },
        Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named("tmp") },
    ];
    if !files.is_empty() {
        volumes.push(Volume {
            secret: Some(SecretVolumeSource {
                secret_name: Some(name(id)),
                items: Some(files.iter().map(|file| item(&file.key)).collect()),
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..named("secret-files")
        });
        volumes.push(Volume { empty_dir: Some(memory("4Mi")), ..named("files") });
    }
    volumes
}
