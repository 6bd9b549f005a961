//! The way to a cluster that hosts machines: a kubeconfig in a Secret of the operator's namespace.
//!
//! It must be self-contained: one that names a program or a file would have whoever uses it run or read that.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::runtime::{connection::fenced, leader::Fence};

/// Key of the Secret.
const KEY: &str = "kubeconfig";

/// Why there is no way to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The Secret cannot be read.
    #[error("cannot read Secret {name} in {namespace}")]
    Read {
        /// Of the Secret.
        name: String,
        /// Of the Secret.
        namespace: String,
        /// What the API server says.
        source: kube::Error,
    },
    /// There is none.
    #[error("there is no Secret {name} in namespace {namespace}: create it with the key kubeconfig")]
    Missing {
        /// Of the Secret.
        name: String,
        /// Of the Secret.
        namespace: String,
    },
    /// There is no kubeconfig in it.
    #[error("Secret {name} in namespace {namespace} has no key kubeconfig")]
    NoKey {
        /// Of the Secret.
        name: String,
        /// Of the Secret.
        namespace: String,
    },
    /// It is no kubeconfig.
    #[error("the kubeconfig in Secret {name} cannot be used")]
    Kubeconfig {
        /// Of the Secret.
        name: String,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// It leads to programs or files.
    #[error(
        "the kubeconfig in Secret {name} uses {what}: the operator neither runs programs nor reads files for it; write certificates, keys or tokens into it (kubectl config view --raw --flatten)"
    )]
    NotSelfContained {
        /// Of the Secret.
        name: String,
        /// What it uses.
        what: &'static str,
    },
    /// No client can be made of it.
    #[error("cannot make a client from Secret {name}")]
    Client {
        /// Of the Secret.
        name: String,
        /// Why.
        source: kube::Error,
    },
}

/// A Secret that leads to a cluster.
#[derive(Clone, Debug)]
pub struct Credentials {
    secrets: Api<Secret>,
    namespace: String,
    name: String,
    fence: Fence,
}

impl Credentials {
    /// The Secret of this name; `client` leads to the operator's own cluster, and writes to the other one go through `fence`.
    #[must_use]
    pub fn new(client: &Client, namespace: &str, name: &str, fence: &Fence) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fence: fence.clone(),
        }
    }

    /// Of the Secret.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client for the cluster, and the version of the Secret that it comes from.
    pub async fn connect(&self) -> Result<(Client, String), CredentialsError> {
        let secret = self.read().await?;
        let name = || self.name.clone();
        let text = secret.data.as_ref().and_then(|data| data.get(KEY));
        let text = text.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        let text =
            text.ok_or_else(|| CredentialsError::NoKey { name: name(), namespace: self.namespace.clone() })?;
        let wrong = |source| CredentialsError::Kubeconfig { name: name(), source };
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(wrong)?;
        if let Some(what) = foreign(&kubeconfig) {
            return Err(CredentialsError::NotSelfContained { name: name(), what });
        }
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)?;
        let client = fenced(config, &self.fence)
            .map_err(|source| CredentialsError::Client { name: name(), source })?;
        Ok((client, version(&secret)))
    }

    /// Whether the Secret is another one than that of `version`.
    pub async fn changed_since(&self, version_then: &str) -> Result<bool, CredentialsError> {
        Ok(version(&self.read().await?) != version_then)
    }

    async fn read(&self) -> Result<Secret, CredentialsError> {
        let (name, namespace) = (self.name.clone(), self.namespace.clone());
        match self.secrets.get_opt(&self.name).await {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => Err(CredentialsError::Missing { name, namespace }),
            Err(source) => Err(CredentialsError::Read { name, namespace, source }),
        }
    }
}

fn version(secret: &Secret) -> String {
    secret.metadata.resource_version.clone().unwrap_or_default()
}

/// What of a kubeconfig would make the operator run a program or read a file of its own.
fn foreign(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let mut users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let mut clusters = kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    if clusters.any(|cluster| cluster.certificate_authority.is_some()) {
        return Some("the file certificate-authority");
    }
    users.find_map(|user| {
        [
            (user.exec.is_some(), "exec"),
            (user.auth_provider.is_some(), "auth-provider"),
            (user.token_file.is_some(), "the file tokenFile"),
            (user.client_certificate.is_some(), "the file client-certificate"),
            (user.client_key.is_some(), "the file client-key"),
        ]
        .into_iter()
        .find_map(|(used, what)| used.then_some(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_must_not_lead_to_programs_or_files_of_the_operator() {
        let with = |user: &str| {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: \"https://c\"}}}}]\nusers: [{{name: u, user: {user}}}]\n"
            );
            foreign(&Kubeconfig::from_yaml(&text).unwrap())
        };
        assert_eq!(with("{token: t}"), None);
        assert_eq!(with("{client-certificate-data: YQ==, client-key-data: YQ==}"), None);
        assert_eq!(with("{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}}"), Some("exec"));
        assert_eq!(with("{tokenFile: /etc/shadow}"), Some("the file tokenFile"));
    }
}
