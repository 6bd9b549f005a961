//! Files that a machine gets before its kubelet starts, with content from the class, a Secret or a ConfigMap.

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, ResourceExt};
use kube_node_api::{FileSource, ProvisionedFile, SecretKeyRef, names::LABEL_MACHINE_FILE};

use super::pod::{File, USER};
use crate::provider::ProviderError;

/// Default mode.
const MODE: i32 = 0o644;
/// Names of users and groups that each of our images has; others are given as numbers.
const NAMES: [(&str, i64); 2] = [("root", 0), ("nonroot", USER)];

/// Type of the Secrets whose content people write; a controller writes that of the others.
const OPAQUE: &str = "Opaque";
/// Beginning of the names of Secrets with the keys of the autoscaler server and its client.
const AUTOSCALER: &str = "kube-node-autoscaler-";

/// Sources of the contents of files.
#[derive(Clone, Debug)]
pub struct Sources {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    namespace: String,
}

impl Sources {
    /// Sources in `namespace`.
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
        }
    }

    /// Reads files with their contents, in the order of the class.
    pub async fn read(&self, files: &[ProvisionedFile]) -> Result<Vec<(File, Vec<u8>)>, ProviderError> {
        let mut read = Vec::with_capacity(files.len());
        for (number, file) in files.iter().enumerate() {
            let content = self.content(&file.path, &file.source).await?;
            let file = installed(number, file).map_err(ProviderError::Invalid)?;
            read.push((file, content));
        }
        Ok(read)
    }

    async fn content(&self, path: &str, source: &FileSource) -> Result<Vec<u8>, ProviderError> {
        if let Some(content) = &source.content {
            return Ok(content.clone().into_bytes());
        }
        let (kind, SecretKeyRef { name, key }, content) = if let Some(of) = &source.secret_key_ref {
            let secret = self.secrets.get_opt(&of.name).await.map_err(ProviderError::retryable)?;
            if let Some(secret) = &secret {
                check_release(path, secret, &self.namespace)?;
            }
            ("Secret", of, secret.map(|secret| secret.data?.remove(&of.key)))
        } else if let Some(of) = &source.config_map_key_ref {
            let map = self.config_maps.get_opt(&of.name).await.map_err(ProviderError::retryable)?;
            let content = map.map(|map| {
                let text = map.data.unwrap_or_default().remove(&of.key);
                text.map(|text| ByteString(text.into_bytes())).or_else(|| map.binary_data?.remove(&of.key))
            });
            ("ConfigMap", of, content)
        } else {
            return Ok(Vec::new());
        };
        let namespace = &self.namespace;
        match content {
            Some(Some(content)) => Ok(content.0),
            Some(None) => Err(ProviderError::NotFound(format!(
                "file {path}: {kind} {name} in namespace {namespace} has no key {key}"
            ))),
            None => Err(ProviderError::NotFound(format!(
                "file {path}: there is no {kind} {name} in namespace {namespace}"
            ))),
        }
    }
}

/// Checks that machines may get this Secret. A class is written by people who may not read the Secrets of the namespace, so only
/// those are delivered that their owner has labelled for it. A label may come later, as a missing Secret may.
fn check_release(path: &str, secret: &Secret, namespace: &str) -> Result<(), ProviderError> {
    let name = secret.name_any();
    let r#type = secret.type_.as_deref().unwrap_or(OPAQUE);
    if r#type != OPAQUE || name.starts_with(AUTOSCALER) {
        let what = match r#type {
            OPAQUE => "belongs to the autoscaler server".to_owned(),
            other => format!("is of type {other}"),
        };
        return Err(ProviderError::Invalid(format!(
            "file {path}: Secret {name} {what}, and no machine gets what belongs to somebody else: put what it needs into another Secret of type {OPAQUE}"
        )));
    }
    if secret.labels().get(LABEL_MACHINE_FILE).is_none_or(|value| value != "true") {
        return Err(ProviderError::NotFound(format!(
            "file {path}: Secret {name} is not released to machines: if each machine of this class may have it, kubectl -n {namespace} label secret {name} {LABEL_MACHINE_FILE}=true"
        )));
    }
    Ok(())
}

/// The file as the machine gets it.
fn installed(number: usize, file: &ProvisionedFile) -> Result<File, String> {
    let mode = file.permissions.as_deref().map(|mode| i32::from_str_radix(mode, 8)).transpose();
    Ok(File {
        key: format!("file-{number}"),
        path: file.path.clone(),
        mode: mode.map_err(|_| format!("file {}: permissions are no octal mode: write for example \"0640\"", file.path))?.unwrap_or(MODE),
        owner: match &file.owner {
            None => (USER, USER),
            Some(owner) => self::owner(owner).ok_or_else(|| {
                format!("file {}: owner {owner} is unknown to the machine: write root, nonroot or numbers, for example \"1000:1000\"", file.path)
            })?,
        },
    })
}

fn owner(text: &str) -> Option<(i64, i64)> {
    let id = |name: &str| {
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, id)| *id);
        known.or_else(|| name.parse::<u32>().ok().map(i64::from))
    };
    let (user, group) = text.split_once(':').unwrap_or((text, text));
    Some((id(user)?, id(group)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_known_names_or_numbers() {
        assert_eq!(owner("root:root"), Some((0, 0)));
        assert_eq!(owner("nonroot"), Some((USER, USER)));
        assert_eq!(owner("1000:0"), Some((1000, 0)));
        assert_eq!(owner("admin:root"), None);
        assert_eq!(owner("-1:0"), None);
    }

    #[test]
    fn machines_get_opaque_secrets_with_the_label_and_no_others() {
        let refusal = |name: &str, r#type: &str, label: &str| {
            let metadata = serde_json::json!({ "name": name, "labels": { LABEL_MACHINE_FILE: label } });
            let secret =
                serde_json::from_value(serde_json::json!({ "metadata": metadata, "type": r#type })).unwrap();
            check_release("/a", &secret, "system").err()
        };
        assert!(refusal("ssh", OPAQUE, "true").is_none());
        let later = refusal("ssh", OPAQUE, "false").unwrap();
        assert_eq!(later.reason(), "ReferenceNotFound");
        let wanted = "kubectl -n system label secret ssh kube-node.io/machine-file=true";
        assert!(later.to_string().ends_with(wanted), "{later}");
        for (name, r#type, what) in [
            ("a", "kubernetes.io/service-account-token", "is of type kubernetes.io/service-account-token"),
            ("a", "bootstrap.kubernetes.io/token", "is of type bootstrap.kubernetes.io/token"),
            ("a", "helm.sh/release.v1", "is of type helm.sh/release.v1"),
            ("a", "kubernetes.io/tls", "is of type kubernetes.io/tls"),
            ("kube-node-autoscaler-server", OPAQUE, "belongs to the autoscaler server"),
            ("kube-node-autoscaler-client", OPAQUE, "belongs to the autoscaler server"),
        ] {
            let refusal = refusal(name, r#type, "true").unwrap();
            assert_eq!(refusal.reason(), "InvalidMachine");
            assert!(refusal.to_string().contains(what), "{refusal}");
        }
    }

    #[test]
    fn a_file_without_owner_and_mode_is_readable_by_the_machine() {
        let file = |json: serde_json::Value| serde_json::from_value::<ProvisionedFile>(json).unwrap();
        let plain = installed(3, &file(serde_json::json!({"path": "/etc/a", "content": "x"}))).unwrap();
        assert_eq!((plain.key.as_str(), plain.mode, plain.owner), ("file-3", 0o644, (USER, USER)));
        let restricted = file(
            serde_json::json!({"path": "/etc/a", "owner": "root", "permissions": "0600", "content": ""}),
        );
        let own = installed(0, &restricted).unwrap();
        assert_eq!((own.mode, own.owner), (0o600, (0, 0)));
        let wrong = file(serde_json::json!({"path": "/etc/a", "owner": "me", "content": ""}));
        assert!(installed(0, &wrong).unwrap_err().contains("owner me is unknown"));
    }
}
