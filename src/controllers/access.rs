//! Access to the API server: an identity and its clients.

use std::{ffi::OsStr, path::Path};

use anyhow::{Context, ensure};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use kube_ext::{connection, leader::Fence};
use tower::{Layer, ServiceExt, service_fn};

use crate::preflight::Preflight;

/// An identity and the API server that it is for.
#[derive(Clone)]
pub struct Access {
    config: Config,
    /// URL of the API server, for messages.
    pub url: String,
    /// Context of the kubeconfig that leads to the cluster; `None` for the pod's own identity.
    pub context: Option<String>,
    /// Source of the identity, for messages.
    identity: String,
    /// Client that is used in place of a connection by `config`.
    given: Option<Client>,
}

impl Access {
    /// Reads the kubeconfig; without one, infers the configuration from `KUBECONFIG` or the pod's ServiceAccount.
    /// `context` selects a context of the kubeconfig in place of its current one.
    pub async fn new(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
        let identity = kubeconfig
            .map_or_else(|| "this identity".to_owned(), |path| format!("the identity of {}", path.display()));
        let name = kubeconfig
            .map_or_else(|| "of KUBECONFIG or ~/.kube/config".to_owned(), |path| path.display().to_string());
        let unusable = || format!("the kubeconfig {name} cannot be used");
        let file = if let Some(path) = kubeconfig {
            Some(Kubeconfig::read_from(path).with_context(unusable)?)
        } else {
            let variable = std::env::var_os("KUBECONFIG").unwrap_or_default();
            let named = merged(&variable).with_context(unusable)?;
            let default = || Kubeconfig::read().with_context(unusable);
            if named.is_none() && context.is_some() { Some(default()?) } else { named }
        };
        let mut current = context.map(str::to_owned);
        let config = if let Some(file) = file {
            current = current.or_else(|| file.current_context.clone());
            if let Some(context) = context {
                let contexts: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
                ensure!(
                    contexts.contains(&context),
                    "the kubeconfig {name} has no context {context}; it has: {}",
                    contexts.join(", ")
                );
            }
            let options =
                KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(file, &options).await.with_context(unusable)?
        } else {
            current = Kubeconfig::read().ok().and_then(|file| file.current_context);
            Config::infer()
                .await
                .context("no way to an API server: give --kubeconfig, set KUBECONFIG, or run in a pod")?
        };
        let url = config.cluster_url.to_string();
        Ok(Self { url, context: current, config, identity, given: None })
    }

    /// Access by a client, such as one of an API server in this process. Machines with a dedicated identity and
    /// pods, which connect by themselves, do not reach it; impersonation is up to the client.
    pub fn by(client: Client) -> Self {
        let config = Config::new(http::Uri::from_static("http://in-process"));
        let (url, identity) = (config.cluster_url.to_string(), "this identity".to_owned());
        Self { config, url, context: None, identity, given: Some(client) }
    }

    /// Impersonates `user`, so that a second identity needs no second credential.
    pub fn acting_as(mut self, user: String) -> Self {
        self.identity = format!("{} as {user}", self.identity);
        self.config.auth_info.impersonate = Some(user);
        self
    }

    /// Address and CA of the API server, without credentials.
    pub fn anonymous(&self) -> Config {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        config
    }

    /// A client without a fence.
    pub fn client(&self) -> anyhow::Result<Client> {
        if let Some(client) = &self.given {
            return Ok(client.clone());
        }
        connection::client(self.config.clone())
            .with_context(|| format!("cannot make a client for {}", self.url))
    }

    /// A client that sends writes only while `fence` is open.
    pub fn fenced(&self, fence: &Fence) -> anyhow::Result<Client> {
        if let Some(client) = &self.given {
            let (client, namespace) = (client.clone(), client.default_namespace().to_owned());
            let fence = fence.clone();
            // The fence is checked in the task of the caller, whose clock counts.
            let server = service_fn(move |request| {
                let (client, fence) = (client.clone(), fence.clone());
                async move { fence.layer(service_fn(|request| client.send(request))).oneshot(request).await }
            });
            return Ok(Client::new(server, namespace));
        }
        connection::fenced(self.config.clone(), fence)
            .with_context(|| format!("cannot make a client for {}", self.url))
    }

    /// Returns the client once the API server has answered.
    pub async fn connected(&self) -> anyhow::Result<Client> {
        let client = self.client()?;
        self.preflight(&client, "", "").reach().await?;
        Ok(client)
    }

    /// Checks of this identity by its `client`.
    pub fn preflight<'a>(
        &'a self,
        client: &'a Client,
        namespace: &'a str,
        machine_namespace: &'a str,
    ) -> Preflight<'a> {
        Preflight { client, who: &self.identity, url: &self.url, namespace, machine_namespace }
    }

    /// CA certificates of the API server (PEM); empty if the system's root certificates are used.
    pub fn ca(&self) -> String {
        let certificates = self.config.root_cert.iter().flatten();
        certificates.map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice()))).collect()
    }
}

/// Merges the kubeconfigs of a list in the form of `KUBECONFIG` as kubectl does: the first one has precedence, and files
/// that do not exist are left out. `None` if none exists.
fn merged(list: &OsStr) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let mut files = std::env::split_paths(list).filter(|path| path.exists());
    let Some(first) = files.next() else { return Ok(None) };
    files
        .try_fold(Kubeconfig::read_from(first)?, |merged, path| merged.merge(Kubeconfig::read_from(path)?))
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
contexts:
- {name: one, context: {cluster: one, user: u}}
- {name: two, context: {cluster: two, user: u}}
clusters:
- {name: one, cluster: {server: 'https://one.example.com'}}
- {name: two, cluster: {server: 'https://two.example.com'}}
users:
- {name: u, user: {token: t}}
";

    #[tokio::test]
    async fn a_context_is_one_of_the_kubeconfig() {
        let file = std::env::temp_dir().join(format!("kube-node-contexts-{}", std::process::id()));
        std::fs::write(&file, KUBECONFIG).unwrap();
        for (context, url) in [(None, "https://one.example.com/"), (Some("two"), "https://two.example.com/")]
        {
            let access = Access::new(Some(&file), context).await.unwrap();
            assert_eq!((access.url.as_str(), access.context.as_deref()), (url, context.or(Some("one"))));
        }
        let error = Access::new(Some(&file), Some("three")).await.err().unwrap().to_string();
        assert_eq!(
            error,
            format!("the kubeconfig {} has no context three; it has: one, two", file.display())
        );
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_list_of_kubeconfigs_may_name_files_that_do_not_exist() {
        let dir = std::env::temp_dir();
        let path = |name: &str| dir.join(format!("kube-node-list-{name}-{}", std::process::id()));
        std::fs::write(path("a"), KUBECONFIG).unwrap();
        std::fs::write(path("b"), KUBECONFIG.replace("one", "three")).unwrap();
        let merged = |names: &[&str]| {
            merged(&std::env::join_paths(names.iter().map(|name| path(name))).unwrap()).unwrap()
        };
        let both = merged(&["missing", "a", "b"]).unwrap();
        assert_eq!(both.current_context.as_deref(), Some("one"));
        assert!(both.contexts.iter().any(|context| context.name == "three"));
        assert!(merged(&["missing"]).is_none() && super::merged(OsStr::new("")).unwrap().is_none());
        std::fs::write(path("a"), "{").unwrap();
        assert!(super::merged(path("a").as_os_str()).is_err());
        for name in ["a", "b"] {
            std::fs::remove_file(path(name)).unwrap();
        }
    }
}
