//! One certificate request, from the key to the issued certificate.

use std::time::Duration;

use anyhow::Context;
use futures::{TryStreamExt, pin_mut};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams, WatchEvent, WatchParams},
};
use kube_ext::call::call;
use kube_node_api::machine_identity::{GROUP, SIGNER, USAGES, USER_PREFIX};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    CredentialStore, IdentityError, IdentityOptions,
    error::ANSWER_LIMIT,
    store::{Certificate, unusable},
};

/// Time limit for a watch to show the existing CSR: longer than that of its call.
const STILL_THERE: Duration = Duration::from_secs(25);
/// Resource version at which a watch starts from any state that the API server has.
const ANY_VERSION: &str = "0";
/// Error of a key or of a CSR that cannot be created.
const NO_KEY: &str = "cannot make a key and a request for a certificate";
/// Wait between two watches of one CSR.
const WATCH_AGAIN: Duration = Duration::from_millis(500);

/// Pending CSR, over all tries: until it is answered it is followed, and no other one is created.
#[derive(Default)]
pub struct PendingCsr(Option<(KeyPair, CertificateSigningRequest)>);

impl PendingCsr {
    /// Obtains a certificate by the token.
    pub(super) async fn with_token<P: CredentialStore>(
        &mut self,
        options: &IdentityOptions<P>,
    ) -> Result<Certificate, IdentityError> {
        let by_token = options.store.token_client(&options.node).await?;
        match self.with_client(&by_token.client, options).await {
            Err(error) if error.is_unauthenticated() => Err(by_token.refused(&options.node)),
            made => made,
        }
    }

    /// Obtains a certificate by `client`.
    pub(super) async fn with_client<P>(
        &mut self,
        client: &Client,
        options: &IdentityOptions<P>,
    ) -> Result<Certificate, IdentityError> {
        let api: Api<CertificateSigningRequest> = Api::all(client.clone());
        if let Some((_, made)) = &mut self.0 {
            // The CSR is there still, or was deleted meanwhile.
            match timeout(STILL_THERE, change(&api, made, ANY_VERSION)).await {
                Ok(seen) => *made = seen?,
                Err(_) => self.0 = None,
            }
        }
        let (key, made) = if let Some(pending) = self.0.take() {
            pending
        } else {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context(NO_KEY)?;
            let request = request(options, &key)?;
            (key, call("ask for a certificate", api.create(&PostParams::default(), &request)).await?)
        };
        // Stored before the wait: a caller that drops this future continues with the same CSR.
        let (key, made) = self.0.insert((key, made));
        let pem = answer_to(&api, made).await;
        // A failed call says nothing about the CSR, nor does a late answer.
        if let Err(error @ (IdentityError::Call(_) | IdentityError::Unanswered { .. })) = pem {
            return Err(error);
        }
        let certificate = pem.and_then(|pem| Ok(Certificate::new(pem, key, &options.node)?));
        self.0 = None;
        certificate
    }
}

fn request<P>(options: &IdentityOptions<P>, key: &KeyPair) -> anyhow::Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, GROUP);
    params.distinguished_name.push(DnType::CommonName, format!("{USER_PREFIX}{}", options.node));
    let pem = params.serialize_request(key).and_then(|request| request.pem()).context(NO_KEY)?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some(format!("{}-", options.node)), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: Some(i32::try_from(options.lifetime.as_secs()).unwrap_or(i32::MAX)),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// Follows a CSR until it is answered.
async fn answer_to(
    api: &Api<CertificateSigningRequest>,
    seen: &mut CertificateSigningRequest,
) -> Result<String, IdentityError> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    loop {
        if let Some(pem) = answer_in(seen)? {
            return Ok(pem);
        }
        let version = seen.metadata.resource_version.clone().unwrap_or_default();
        let Ok(changed) = timeout_at(deadline, change(api, seen, &version)).await else {
            let name = seen.metadata.name.clone().unwrap_or_default();
            return Err(IdentityError::Unanswered { name });
        };
        *seen = changed?;
    }
}

/// Answer in the CSR's status: the certificate, a refusal, or nothing yet.
fn answer_in(request: &CertificateSigningRequest) -> Result<Option<String>, IdentityError> {
    let Some(status) = &request.status else { return Ok(None) };
    for condition in status.conditions.iter().flatten().filter(|condition| condition.status == "True") {
        let reason = condition.reason.clone().unwrap_or_default();
        let message = condition.message.clone().unwrap_or_default();
        match condition.type_.as_str() {
            "Denied" => return Err(IdentityError::Denied { reason, message }),
            "Failed" => return Err(IdentityError::Failed { reason, message }),
            _ => {}
        }
    }
    let Some(ByteString(certificate)) = &status.certificate else { return Ok(None) };
    Ok(Some(String::from_utf8(certificate.clone()).map_err(|_| unusable("it is not PEM"))?))
}

/// Waits until the CSR has changed since `version`.
async fn change(
    api: &Api<CertificateSigningRequest>,
    seen: &CertificateSigningRequest,
    mut version: &str,
) -> Result<CertificateSigningRequest, IdentityError> {
    let name = seen.metadata.name.as_deref().unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    loop {
        let events = call("follow the request for a certificate", api.watch(&params, version)).await?;
        pin_mut!(events);
        while let Ok(Some(event)) = events.try_next().await {
            use WatchEvent::{Added, Deleted, Modified};
            if let Added(changed) | Modified(changed) | Deleted(changed) = event {
                return Ok(changed);
            }
        }
        // The watch has ended, or its version is too old. A watch from any version starts with the current
        // object.
        sleep(WATCH_AGAIN).await;
        version = ANY_VERSION;
    }
}
