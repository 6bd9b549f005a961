//! Pushes images to a registry, by the distribution API of OCI.
//!
//! Input: a [`Repository`], a tag, and images for different architectures. Output: the digest that the tag names afterwards.
//!
//! Invariants: a manifest is pushed after the blobs that it names, and the tag last, so nobody pulls half an image. Blobs
//! that the registry has are not sent again. No error quotes a credential.

mod credentials;
mod identity_token;
mod refusal;
mod repository;

use std::{path::Path, time::Duration};

use anyhow::Context;
use http::HeaderValue;
use oci_client::{
    Client, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
    errors::Result,
    secrets::RegistryAuth,
};

pub use repository::Repository;

use self::credentials::{Credentials, Secret};
use super::packed::{self, Blob, Packed};
use crate::{http_client, progress::Progress};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for one request: a layer on a slow line takes minutes.
const REQUEST_LIMIT: Duration = Duration::from_mins(10);

/// Pushes images under a tag, several as one index. Without `plain_http` loopback addresses are asked by http, and all
/// others by https.
pub async fn push(
    repository: &Repository,
    tag: &str,
    images: Vec<Packed>,
    plain_http: Option<bool>,
    progress: &Progress,
) -> anyhow::Result<String> {
    let credentials = Credentials::find(repository)?;
    let explain = |error| refusal::explain(error, repository, &credentials);
    let plain_http = plain_http.unwrap_or_else(|| repository.is_loopback());
    let client = client(repository, plain_http)?;
    let scope = repository.reference(tag);
    progress.step(&format!("Pushing to {repository}"));
    let auth = match &credentials.secret {
        Secret::Auth(RegistryAuth::Anonymous) => RegistryAuth::Anonymous,
        Secret::Auth(auth) => {
            identity_token::check_issuer(repository, plain_http).await?;
            auth.clone()
        }
        Secret::IdentityToken(token) => {
            let file = credentials.file.as_deref().unwrap_or(Path::new("a file")).display();
            let exchanged = identity_token::exchange(token, repository, plain_http).await;
            exchanged.with_context(|| format!("the identity token in {file} cannot be used"))?
        }
    };
    client.auth(&scope, &auth, RegistryOperation::Push).await.map_err(explain)?;
    let upload = Upload { client, repository };
    upload.images(tag, images).await.map_err(explain)
}

/// The digest that a tag of these images names after [`push`]: it follows from the images alone.
pub fn digest(images: &[Packed]) -> String {
    top(images).0.digest
}

/// What a tag of these images names: the manifest of one, or an index of several.
fn top(images: &[Packed]) -> (Blob, &'static str) {
    match images {
        [image] => (image.manifest.clone(), packed::MANIFEST),
        images => (packed::index(images), packed::INDEX),
    }
}

fn client(repository: &Repository, plain_http: bool) -> anyhow::Result<Client> {
    http_client::install_cryptography();
    let mut config = ClientConfig {
        protocol: if plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
        // One request for each blob: some registries take no chunks.
        use_monolithic_push: true,
        connect_timeout: Some(CONNECT_LIMIT),
        read_timeout: Some(REQUEST_LIMIT),
        user_agent: concat!("kube-node/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    };
    // A proxy that is named replaces those of the variables, which would lead to a registry on this machine, too.
    if repository.is_loopback() {
        config.http_proxy = http_client::variable("HTTP_PROXY");
        config.https_proxy = http_client::variable("HTTPS_PROXY");
        let others = http_client::variable("NO_PROXY").unwrap_or_default();
        config.no_proxy = Some(format!("localhost,127.0.0.0/8,::1,{others}"));
    }
    Client::try_from(config).context(http_client::NO_TLS)
}

/// A client with the repository that it pushes to.
struct Upload<'a> {
    client: Client,
    repository: &'a Repository,
}

impl Upload<'_> {
    async fn images(&self, tag: &str, mut images: Vec<Packed>) -> Result<String> {
        for image in &mut images {
            for blob in [&mut image.layer, &mut image.config] {
                self.blob(blob).await?;
            }
        }
        let (mut top, media_type) = top(&images);
        // The manifest of one image is what the tag names.
        for image in images.iter_mut().filter(|image| image.manifest.digest != top.digest) {
            let digest = image.manifest.digest.clone();
            self.manifest(&digest, &mut image.manifest, packed::MANIFEST).await?;
        }
        self.manifest(tag, &mut top, media_type).await
    }

    async fn blob(&self, blob: &mut Blob) -> Result<()> {
        let any = self.repository.reference(&blob.digest);
        // A registry that does not answer the question is asked to take the blob, and says why not.
        if !self.client.blob_exists(&any, &blob.digest).await.unwrap_or_default() {
            self.client.push_blob(&any, std::mem::take(&mut blob.bytes), &blob.digest).await?;
        }
        Ok(())
    }

    /// Pushes a manifest under a tag or its own digest.
    async fn manifest(&self, name: &str, blob: &mut Blob, media_type: &'static str) -> Result<String> {
        let (name, media_type) = (self.repository.reference(name), HeaderValue::from_static(media_type));
        self.client.push_manifest_raw(&name, std::mem::take(&mut blob.bytes), media_type).await?;
        Ok(blob.digest.clone())
    }
}
