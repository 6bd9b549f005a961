//! Errors of a push as sentences: the registry's name, the reason, and a remedy.
//!
//! The client's own texts hold URLs, which may have signatures in their queries, so they are not part of an error.

use std::{error::Error, io, iter};

use anyhow::anyhow;
use oci_client::errors::{OciDistributionError, OciEnvelope, OciErrorCode};

use super::{Repository, credentials::Credentials};

/// Longest part of a registry's own message in an error.
const MESSAGE_LIMIT: usize = 200;

/// The error of a push to `repository` with these credentials.
pub(super) fn explain(
    error: OciDistributionError,
    repository: &Repository,
    credentials: &Credentials,
) -> anyhow::Error {
    let registry = repository.registry();
    match error {
        OciDistributionError::RequestError(error) => unreachable_by(&error.without_url(), repository),
        OciDistributionError::UnauthorizedError { .. }
        | OciDistributionError::ServerError { code: 401, .. } => unauthorized(repository, credentials),
        // The server of the tokens knows the account, and knows that the account may not push.
        OciDistributionError::AuthenticationFailure(said)
            if serde_json::from_str(&said).is_ok_and(|envelope| has_code(&envelope, &["DENIED"])) =>
        {
            because(denied(repository, credentials), &excerpt(&said))
        }
        OciDistributionError::AuthenticationFailure(said) => {
            because(unauthorized(repository, credentials).to_string(), &excerpt(&said))
        }
        OciDistributionError::ServerError { code: 403, message, .. } => {
            because(denied(repository, credentials), &excerpt(&message))
        }
        OciDistributionError::RegistryError { envelope, .. }
            if has_code(&envelope, &["DENIED", "UNAUTHORIZED"]) =>
        {
            because(denied(repository, credentials), &short(&messages(&envelope)))
        }
        OciDistributionError::RegistryError { envelope, .. } => {
            because(format!("{registry} did not take the image"), &short(&messages(&envelope)))
        }
        OciDistributionError::ServerError { code: 400, message, .. } if message.contains("HTTPS server") => {
            anyhow!(
                "{registry} speaks https: leave --plain-http away, or give --plain-http=false for a loopback address"
            )
        }
        OciDistributionError::ServerError { code: code @ (404 | 405), message, .. } => {
            anyhow!("HTTP status {code}: {}", excerpt(&message)).context(format!(
                "{registry} does not know the API of registries, or has no room for {}: check the name",
                repository.name()
            ))
        }
        OciDistributionError::ServerError { code, message, .. } => {
            anyhow!("HTTP status {code}: {}", excerpt(&message))
                .context(format!("{registry} did not take the image: try again"))
        }
        other => anyhow!(other).context(format!("cannot push to {registry}")),
    }
}

fn unauthorized(repository: &Repository, credentials: &Credentials) -> anyhow::Error {
    let registry = repository.registry();
    match &credentials.file {
        Some(file) => anyhow!(
            "{registry} refuses the credential in {}: docker login {registry}, or podman login {registry}, replaces it",
            file.display()
        ),
        None => anyhow!(
            "{registry} asks for a credential, and there is none for it in {}: docker login {registry}, or podman login {registry}, writes one",
            searched(credentials)
        ),
    }
}

fn denied(repository: &Repository, credentials: &Credentials) -> String {
    let (registry, name) = (repository.registry(), repository.name());
    match &credentials.file {
        Some(file) => format!(
            "{registry} does not let the account in {} push {name}: use a name that belongs to it, or log in with another account",
            file.display()
        ),
        None => format!(
            "{registry} lets nobody push {name} without a credential, and there is none for it in {}: docker login {registry}",
            searched(credentials)
        ),
    }
}

fn searched(credentials: &Credentials) -> String {
    let files: Vec<_> = credentials.searched.iter().map(|file| file.display().to_string()).collect();
    if files.is_empty() { "any file, since HOME is not set".to_owned() } else { files.join(" or ") }
}

/// A request without an answer.
pub(super) fn unreachable_by(error: &(dyn Error + 'static), repository: &Repository) -> anyhow::Error {
    let registry = repository.registry();
    let mut sentence = format!("cannot reach {registry}: check its name and the network in between");
    let chain = || iter::successors(Some(error), |error| inner(*error));
    for error in chain() {
        if let Some(tls) = error.downcast_ref() {
            sentence = of_tls(tls, registry).unwrap_or(sentence);
        } else if error
            .downcast_ref()
            .is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::ConnectionRefused)
        {
            sentence =
                format!("nothing listens at {registry}: start the registry, or correct its name and port");
        } else if error.to_string().starts_with("failed to lookup address information") {
            sentence = format!("no address is known for {registry}: correct the name of the registry");
        }
    }
    anyhow!(chain().last().unwrap_or(error).to_string()).context(sentence)
}

/// Cause of an error. An I/O error that wraps another error passes over it in its `source`.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

fn of_tls(error: &rustls::Error, registry: &str) -> Option<String> {
    match error {
        rustls::Error::InvalidMessage(_) => Some(format!(
            "{registry} does not speak https: give --plain-http if it speaks http and the network in between is trusted"
        )),
        rustls::Error::InvalidCertificate(_) => Some(format!(
            "the certificate of {registry} is not trusted here: name the file of its CA in SSL_CERT_FILE"
        )),
        _ => None,
    }
}

/// A sentence, with the registry's own words if there are any.
fn because(sentence: String, words: &str) -> anyhow::Error {
    if words.is_empty() { anyhow!(sentence) } else { anyhow!("{words}").context(sentence) }
}

/// Returns true if an error has one of these codes. Some registries write codes in lower case.
fn has_code(envelope: &OciEnvelope, codes: &[&str]) -> bool {
    envelope.errors.iter().any(|error| match &error.code {
        OciErrorCode::Denied => codes.contains(&"DENIED"),
        OciErrorCode::Unauthorized => codes.contains(&"UNAUTHORIZED"),
        OciErrorCode::Other(code) => codes.iter().any(|one| one.eq_ignore_ascii_case(code)),
        _ => false,
    })
}

fn messages(envelope: &OciEnvelope) -> String {
    envelope.errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join(", ")
}

/// The message in a registry's answer: that of its error document, or its beginning.
fn excerpt(answer: &str) -> String {
    let text =
        serde_json::from_str(answer).map_or_else(|_| answer.to_owned(), |envelope| messages(&envelope));
    short(&text)
}

/// The beginning of a text, in one line.
fn short(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    line.join(" ").chars().take(MESSAGE_LIMIT).collect()
}
