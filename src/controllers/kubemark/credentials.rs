//! Credentials for a hosting cluster: a kubeconfig in a Secret of the operator's namespace.
//!
//! The kubeconfig must be self-contained: the operator would run a program, or read a file, that it names. It
//! must lead straight to a server that is verified by TLS: the operator sends tokens of machines there.
//!
//! Invariant: no error carries content of the Secret. Errors reach statuses and logs, which more people read
//! than Secrets.

use anyhow::Context;
use http::HeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config,
    api::Patch,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use kube_ext::{call::call, connection::fenced, environment, leader::Fence};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tracing::info;

use super::token_renewal::TokenRenewal;
use crate::api::patch_params;

/// Key in the Secret.
const KEY: &str = "kubeconfig";

/// A hosting cluster that credentials lead to.
pub struct Connected {
    /// Client of the cluster.
    pub client: Client,
    /// Identity of the server: its URL and the authority by which TLS verifies it.
    pub server: String,
    /// Version of the Secret that the client was built from.
    pub version: String,
    renewal: Option<TokenRenewal>,
}

/// A Secret with credentials for a hosting cluster.
#[derive(Clone, Debug)]
pub struct Credentials {
    secrets: Api<Secret>,
    namespace: String,
    /// Name of the Secret.
    pub name: String,
    fence: Fence,
    insecure: bool,
}

impl Credentials {
    /// The Secret `name`. `client` leads to the operator's own cluster; writes to the hosting cluster go
    /// through `fence`. With `insecure` the server need not be verified.
    pub fn new(client: &Client, namespace: &str, name: &str, fence: &Fence, insecure: bool) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fence: fence.clone(),
            insecure,
        }
    }

    /// Connects to the cluster. If the Secret cannot be read, a [`kube::Error`] is the cause of the error; otherwise the Secret has to
    /// be corrected, and the cause is left out, since a parser quotes what it cannot read.
    pub async fn connect(&self) -> anyhow::Result<Connected> {
        let Self { secrets, namespace, name, .. } = self;
        let secret = secrets.get_opt(name).await;
        let secret = secret.with_context(|| format!("cannot read Secret {name} in {namespace}"))?;
        let secret = secret.with_context(|| {
            format!("there is no Secret {name} in namespace {namespace}: create it with the key {KEY}")
        })?;
        let text = secret.data.as_ref().and_then(|data| std::str::from_utf8(&data.get(KEY)?.0).ok());
        let text =
            text.with_context(|| format!("Secret {name} in namespace {namespace} has no key {KEY}"))?;
        let (client, server, renewal) = self.client(text).await.map_err(anyhow::Error::msg)?;
        Ok(Connected { client, server, renewal, version: version(&secret) })
    }

    /// Puts the next token into the Secret if the present one has half of its life behind it. Another version of the Secret is left
    /// as it is.
    pub async fn renew(&self, connected: &Connected) -> anyhow::Result<()> {
        let Some(renewal) = connected.renewal.as_ref().filter(|own| own.is_due(environment::now())) else {
            return Ok(());
        };
        let token = renewal.request(&connected.client).await?;
        let Self { secrets, name, .. } = self;
        let secret = call(format!("read Secret {name}"), secrets.get(name)).await?;
        let text = secret.data.as_ref().and_then(|data| std::str::from_utf8(&data.get(KEY)?.0).ok());
        let unreadable = || format!("the kubeconfig in Secret {name} cannot be read again");
        let kubeconfig = text.and_then(|text| Kubeconfig::from_yaml(text).ok()).with_context(unreadable)?;
        let text = with_token(kubeconfig, token).with_context(unreadable)?;
        let change =
            json!({ "metadata": { "resourceVersion": connected.version }, "stringData": { KEY: text } });
        let (params, change) = (patch_params(), Patch::Merge(change));
        call(format!("write the next token into Secret {name}"), secrets.patch(name, &params, &change))
            .await?;
        info!(secret = name, "the token for the hosting cluster was renewed");
        Ok(())
    }

    /// Builds a client from a kubeconfig. Returns the identity of its server and the renewal of its token with it.
    async fn client(&self, text: &str) -> Result<(Client, String, Option<TokenRenewal>), String> {
        let name = &self.name;
        let wrong = |what: &str| format!("the kubeconfig in Secret {name} cannot be used: {what}");
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(|error| wrong(&without_content(&error)))?;
        if let Some(what) = foreign(&kubeconfig) {
            return Err(format!(
                "the kubeconfig in Secret {name} uses {what}: the operator neither runs programs nor reads files for \
                 it; write certificates, keys or tokens into it (kubectl config view --raw --flatten)"
            ));
        }
        if let Some(what) = insecure(&kubeconfig, self.insecure) {
            return Err(format!("the kubeconfig in Secret {name} {what}"));
        }
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let config = config.map_err(|error| wrong(&without_content(&error)))?;
        // kube's client panics on such a token.
        let token = config.auth_info.token.as_ref();
        if token.is_some_and(|token| HeaderValue::from_str(token.expose_secret()).is_err()) {
            return Err(wrong("its token is no value of an HTTP header: write it on one line, in ASCII"));
        }
        let server = format!("{} {:?}", config.cluster_url, config.root_cert);
        let renewal = token.and_then(|token| TokenRenewal::of(token.expose_secret()));
        let client = fenced(config, &self.fence).map_err(|_| {
            format!(
                "cannot make a client from Secret {name}: check that the certificates and the key in its kubeconfig \
                 are PEM in base64 and belong together"
            )
        })?;
        Ok((client, server, renewal))
    }

    /// Returns true if the Secret has another version than `version_then`, or is gone. A Secret that cannot be
    /// read counts as unchanged: the machines stay while our own API server is unreachable.
    pub async fn have_changed_since(&self, version_then: &str) -> bool {
        let secret = self.secrets.get_opt(&self.name).await;
        secret.is_ok_and(|secret| secret.is_none_or(|secret| version(&secret) != version_then))
    }
}

/// The kubeconfig with another token of its current user. JSON is YAML.
fn with_token(mut kubeconfig: Kubeconfig, token: SecretString) -> Option<String> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?.context.as_ref()?;
    let user = context.user.as_ref()?;
    let own = kubeconfig.auth_infos.iter_mut().find(|info| info.name == *user)?.auth_info.as_mut()?;
    own.token = Some(token);
    serde_json::to_string(&kubeconfig).ok()
}

fn version(secret: &Secret) -> String {
    secret.metadata.resource_version.clone().unwrap_or_default()
}

/// The field of a kubeconfig that would make the operator run a program or read a file of its own.
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

/// The setting of a kubeconfig that leads to a server that cannot be trusted, and the remedy.
fn insecure(kubeconfig: &Kubeconfig, is_allowed: bool) -> Option<&'static str> {
    let is_plain =
        |server: &String| !server.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
    let mut clusters = kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    clusters.find_map(|cluster| {
        if cluster.proxy_url.is_some() {
            return Some("has a proxy-url: the operator connects straight to the server: leave it out");
        }
        if is_allowed {
            return None;
        }
        if cluster.insecure_skip_tls_verify == Some(true) {
            return Some(
                "has insecure-skip-tls-verify: write the server's authority into certificate-authority-data instead, \
                 or start the operator with --insecure-credentials",
            );
        }
        cluster.server.as_ref().is_some_and(is_plain).then_some(
            "has a server without TLS: begin server with https://, or start the operator with --insecure-credentials",
        )
    })
}

/// Describes an error in a kubeconfig without any of its content.
fn without_content(error: &KubeconfigError) -> String {
    let description = match error {
        KubeconfigError::CurrentContextNotSet => "it has no current-context",
        KubeconfigError::LoadContext(_) => "its current-context names no context",
        KubeconfigError::LoadClusterOfContext(_) => "its context names no cluster",
        KubeconfigError::MissingClusterUrl => "its cluster has no server",
        KubeconfigError::ParseClusterUrl(_) => "the server of its cluster is no URL",
        KubeconfigError::LoadCertificateAuthority(_) => "its certificate-authority-data is not base64",
        KubeconfigError::LoadClientCertificate(_) => "its client-certificate-data is not base64",
        KubeconfigError::LoadClientKey(_) => "its client-key-data is not base64",
        KubeconfigError::ParseCertificates(_) => {
            "its certificate-authority-data holds no certificates in PEM"
        }
        KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
            return format!("it is no kubeconfig in YAML{}", place.unwrap_or_default());
        }
        _ => "write one as kubectl config view --raw --flatten --minify does",
    };
    description.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "c2VjcmV0LW9mLXRoZS1rdWJlY29uZmln";

    /// The error for a kubeconfig.
    async fn refusal(text: &str, is_allowed: bool) -> Option<String> {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let client = Client::new(nobody, "default");
        let credentials = Credentials::new(&client, "ns", "creds", &Fence::open(), is_allowed);
        credentials.client(text).await.err()
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        )
    }

    #[tokio::test]
    async fn a_kubeconfig_leads_straight_to_a_server_that_is_verified() {
        let token = "token: t";
        let good = r#"server: "https://c""#;
        assert_eq!(refusal(&kubeconfig(good, token), false).await, None);
        for (cluster, message, is_allowable) in [
            (
                r#"server: "https://c", insecure-skip-tls-verify: true"#,
                "certificate-authority-data instead",
                true,
            ),
            (r#"server: "http://c""#, "begin server with https://", true),
            (r#"server: "https://c", proxy-url: "http://u:p@proxy""#, "leave it out", false),
            (r#"server: "https://c", certificate-authority: /etc/ca"#, "reads files", false),
        ] {
            let text = kubeconfig(cluster, token);
            let refused = refusal(&text, false).await.unwrap();
            assert!(refused.contains(message) && refused.contains("Secret creds"), "{refused}");
            assert_eq!(refusal(&text, true).await.is_none(), is_allowable, "{cluster}");
        }
    }

    #[tokio::test]
    async fn a_token_after_half_of_its_life_is_replaced_by_the_next_one() {
        use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
        let token = |begin: i64| {
            let claims = json!({ "sub": "system:serviceaccount:kubemark:kube-node-hosting", "iat": begin, "exp": begin + 86_400 });
            format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims.to_string()))
        };
        let now = environment::now().as_second();
        for (token, is_due) in [(token(now - 43_000), false), (token(now - 43_300), true)] {
            let requests = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
            let into = requests.clone();
            let text = kubeconfig(r#"server: "https://c""#, &format!("token: {token}"));
            // It serves as both clusters.
            let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let (into, text) = (into.clone(), text.clone());
                async move {
                    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
                    let body = request.into_body().collect_bytes().await.unwrap();
                    into.lock().push((format!("{method} {path}"), String::from_utf8(body.to_vec()).unwrap()));
                    let answer = match method.as_str() {
                        "POST" => json!({ "metadata": {}, "spec": { "audiences": [] },
                            "status": { "token": "next", "expirationTimestamp": "2038-01-01T00:00:00Z" } }),
                        _ => json!({ "metadata": { "name": "creds", "resourceVersion": "7" },
                            "data": { "kubeconfig": k8s_openapi::ByteString(text.into_bytes()) } }),
                    };
                    Ok::<_, tower::BoxError>(http::Response::new(kube::client::Body::from(
                        answer.to_string().into_bytes(),
                    )))
                }
            });
            let client = Client::new(server, "default");
            let credentials = Credentials::new(&client, "ns", "creds", &Fence::open(), false);
            let connected = Connected { client: client.clone(), ..credentials.connect().await.unwrap() };
            requests.lock().clear();
            credentials.renew(&connected).await.unwrap();
            let requests = std::mem::take(&mut *requests.lock());
            if !is_due {
                assert_eq!(requests.len(), 0);
                continue;
            }
            let [(post, wanted), (get, _), (patch, change)] = &requests[..] else { panic!("{requests:?}") };
            assert_eq!(post, "POST /api/v1/namespaces/kubemark/serviceaccounts/kube-node-hosting/token");
            assert!(wanted.contains("86400"), "{wanted}");
            assert_eq!(get, "GET /api/v1/namespaces/ns/secrets/creds");
            assert_eq!(patch, "PATCH /api/v1/namespaces/ns/secrets/creds");
            let change: serde_json::Value = serde_json::from_str(change).unwrap();
            assert_eq!(
                change["metadata"]["resourceVersion"], "7",
                "a Secret that was changed meanwhile stays"
            );
            let text = change["stringData"]["kubeconfig"].as_str().unwrap();
            assert!(!text.contains(&token), "{text}");
            assert_eq!(refusal(text, false).await, None);
            let user = Kubeconfig::from_yaml(text).unwrap().auth_infos.remove(0).auth_info.unwrap();
            assert_eq!(user.token.unwrap().expose_secret(), "next");
        }
    }

    #[tokio::test]
    async fn no_error_carries_what_the_secret_holds() {
        let good = r#"server: "https://c""#;
        for text in [
            SECRET.to_owned(),
            format!("users: {SECRET}"),
            format!("clusters: [{{name: c, cluster: {SECRET}}}]"),
            format!("{{\n  token: {SECRET}\n: ["),
            format!("current-context: {SECRET}"),
            kubeconfig(&format!("server: \"ht tps://{SECRET}\""), "token: t"),
            kubeconfig(&format!("{good}, certificate-authority-data: \"{SECRET}!\""), "token: t"),
            kubeconfig(&format!("{good}, proxy-url: \"{SECRET}\""), "token: t"),
            kubeconfig(good, &format!("token: [{SECRET}]")),
            kubeconfig(good, &format!("client-certificate-data: {SECRET}, client-key-data: {SECRET}")),
            kubeconfig(good, &format!("client-certificate-data: \"{SECRET}!\", client-key-data: {SECRET}")),
            kubeconfig(good, &format!("username: {SECRET}, password: [{SECRET}]")),
            kubeconfig(good, &format!("token: \"{SECRET}\\n{SECRET}\"")),
        ] {
            let refused = refusal(&text, true).await.unwrap_or_else(|| panic!("taken: {text}"));
            assert!(!refused.contains(SECRET) && !refused.contains("secret-of"), "{text}: {refused}");
            assert!(refused.contains("Secret creds"), "{refused}");
        }
    }

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
