//! Credential for a registry, where docker and podman keep it.
//!
//! Input: the file of `REGISTRY_AUTH_FILE`; without that variable docker's `config.json` and podman's `auth.json`, the
//! first that has a credential. A helper program that docker's file names is asked. Output: the credential, its file, and
//! the files that were read.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufReader, ErrorKind},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use docker_credential::{CredentialRetrievalError as Failure, DockerCredential, get_credential_from_reader};
use nix::unistd::geteuid;
use oci_client::secrets::RegistryAuth;

use super::Repository;

/// Name of docker's file. Its keys are registries; those of podman's file may be longer.
const DOCKER_FILE: &str = "config.json";
/// Name under which docker keeps the credential of Docker Hub.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";
/// Text of a docker-credential program that has no credential for a registry.
const NOT_FOUND: &str = "credentials not found";

/// What a file has for a registry.
#[derive(PartialEq)]
pub(super) enum Secret {
    /// What the registry takes as it is.
    Auth(RegistryAuth),
    /// What is exchanged for it.
    IdentityToken(String),
}

/// A credential, and where it was looked up.
pub(super) struct Credentials {
    pub secret: Secret,
    /// File that has the credential; none for [`RegistryAuth::Anonymous`].
    pub file: Option<PathBuf>,
    /// Files that were to be read, existing or not.
    pub searched: Vec<PathBuf>,
}

impl Credentials {
    /// Looks the credential up; without one the registry is asked anonymously.
    pub fn find(repository: &Repository) -> anyhow::Result<Self> {
        Self::find_in(files(|name| std::env::var_os(name)), repository)
    }

    fn find_in(searched: Vec<PathBuf>, repository: &Repository) -> anyhow::Result<Self> {
        for file in &searched {
            for key in keys(file, repository) {
                if let Some(secret) = read(file, &key, repository)? {
                    return Ok(Self { secret, file: Some(file.clone()), searched });
                }
            }
        }
        Ok(Self { secret: Secret::Auth(RegistryAuth::Anonymous), file: None, searched })
    }
}

fn files(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = path("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let docker = path("DOCKER_CONFIG").or_else(|| Some(path("HOME")?.join(".docker")));
    // containers-auth.json(5): without a folder of the session, podman writes to one of the user.
    let run = path("XDG_RUNTIME_DIR").map_or_else(
        || Path::new("/run/containers").join(geteuid().to_string()),
        |dir| dir.join("containers"),
    );
    let config = path("XDG_CONFIG_HOME").or_else(|| Some(path("HOME")?.join(".config")));
    let podman = [Some(run), config.map(|dir| dir.join("containers"))].into_iter().flatten();
    let docker = docker.map(|dir| dir.join(DOCKER_FILE));
    docker.into_iter().chain(podman.map(|dir| dir.join("auth.json"))).collect()
}

/// Keys of a repository's credential, the most specific first.
fn keys(file: &Path, repository: &Repository) -> Vec<String> {
    let registry = repository.registry();
    let mut keys = Vec::new();
    // Podman may have written this file as well, by keys of its own.
    if file.file_name().is_some_and(|name| name == DOCKER_FILE) {
        keys.push(if registry == "docker.io" { DOCKER_HUB } else { registry }.to_owned());
    }
    let whole = repository.to_string();
    keys.push(whole.clone());
    keys.extend(whole.rmatch_indices('/').map(|(slash, _)| whole[..slash].to_owned()));
    keys
}

fn read(file: &Path, key: &str, repository: &Repository) -> anyhow::Result<Option<Secret>> {
    let (at, registry) = (file.display(), repository.registry());
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("cannot read {at}, a file of credentials"))?,
    };
    let again = format!("docker login {registry}, or podman login {registry}, writes it anew");
    match get_credential_from_reader(BufReader::new(opened), key) {
        Ok(DockerCredential::UsernamePassword(user, password)) => Ok(Some(Secret::Auth(RegistryAuth::Basic(user, password)))),
        Ok(DockerCredential::IdentityToken(token)) => Ok(Some(Secret::IdentityToken(token))),
        Err(Failure::NoCredentialConfigured) => Ok(None),
        Err(Failure::HelperFailure { stdout, .. }) if stdout.contains(NOT_FOUND) => Ok(None),
        // Neither output of the program is shown: it may hold a secret.
        Err(Failure::HelperFailure { helper, .. }) => {
            bail!("{helper}, which {at} names for {registry}, has failed: try `echo {key} | {helper} get`")
        }
        Err(error @ Failure::HelperCommunicationError) => Err(anyhow!(error)).with_context(|| {
            format!("{at} names a program for the credential of {registry} that does not run: install it, or remove it there")
        }),
        Err(error) => Err(anyhow!(error))
            .with_context(|| format!("{at} has no readable credential for {registry}: {again}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kube-node-credentials-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn basic(text: &str) -> Secret {
        let (user, password) = text.split_once(':').unwrap();
        Secret::Auth(RegistryAuth::Basic(user.into(), password.into()))
    }

    fn find(file: &Path, repository: &str) -> anyhow::Result<Secret> {
        let repository = Repository::parse(repository).unwrap();
        Credentials::find_in(vec![file.to_owned()], &repository).map(|found| found.secret)
    }

    #[test]
    fn files_are_those_of_docker_and_podman() {
        let with = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> =
                set.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
            files(move |name| set.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone()))
        };
        let of_user = Path::new("/run/containers").join(geteuid().to_string()).join("auth.json");
        assert_eq!(
            with(&[("HOME", "/h")]),
            [Path::new("/h/.docker/config.json"), &of_user, Path::new("/h/.config/containers/auth.json")]
        );
        assert_eq!(
            with(&[
                ("HOME", "/h"),
                ("DOCKER_CONFIG", "/d"),
                ("XDG_RUNTIME_DIR", "/r"),
                ("XDG_CONFIG_HOME", "/c")
            ]),
            [
                Path::new("/d/config.json"),
                Path::new("/r/containers/auth.json"),
                Path::new("/c/containers/auth.json")
            ]
        );
        assert_eq!(with(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/f")]), [Path::new("/f")]);
        assert_eq!(with(&[("HOME", "")]), [of_user]);
    }

    #[test]
    fn podman_keeps_credentials_of_parts_of_a_registry() {
        let dir = scratch("podman");
        let file = dir.join("auth.json");
        // a:b and c:d
        fs::write(&file, r#"{"auths": {"quay.io": {"auth": "YTpi"}, "quay.io/me": {"auth": "Yzpk"}}}"#)
            .unwrap();
        assert!(find(&file, "quay.io/me/kube-node").unwrap() == basic("c:d"));
        assert!(find(&file, "quay.io/you/kube-node").unwrap() == basic("a:b"));
        let anonymous = Secret::Auth(RegistryAuth::Anonymous);
        assert!(find(&file, "ghcr.io/me/kube-node").unwrap() == anonymous);
        assert!(find(&dir.join("absent.json"), "quay.io/me/x").unwrap() == anonymous);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn docker_hub_has_a_name_of_its_own() {
        let dir = scratch("hub");
        let file = dir.join(DOCKER_FILE);
        fs::write(&file, format!(r#"{{"auths": {{"{DOCKER_HUB}": {{"auth": "YTpi"}}}}}}"#)).unwrap();
        assert!(find(&file, "docker.io/me/kube-node").unwrap() == basic("a:b"));
        // By `REGISTRY_AUTH_FILE=~/.docker/config.json podman login docker.io`.
        fs::write(&file, r#"{"auths": {"docker.io": {"auth": "Yzpk"}}}"#).unwrap();
        assert!(find(&file, "docker.io/me/kube-node").unwrap() == basic("c:d"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_login_may_leave_an_identity_token() {
        let dir = scratch("token");
        let file = dir.join(DOCKER_FILE);
        let text = r#"{"auths": {"a.example": {"auth": "MDAwMDo=", "identitytoken": "t"}}}"#;
        fs::write(&file, text).unwrap();
        assert!(find(&file, "a.example/me/kube-node").unwrap() == Secret::IdentityToken("t".to_owned()));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn unusable_credentials_are_named_with_their_file() {
        let dir = scratch("unusable");
        let file = dir.join(DOCKER_FILE);
        for (text, wanted) in [
            ("{", "has no readable credential for ghcr.io: docker login ghcr.io"),
            (r#"{"auths": {"ghcr.io": {"auth": "?"}}}"#, "has no readable credential for ghcr.io"),
            (r#"{"credsStore": "of-nobody"}"#, "that does not run: install it, or remove it there"),
        ] {
            fs::write(&file, text).unwrap();
            let error = format!("{:#}", find(&file, "ghcr.io/me/kube-node").err().unwrap());
            assert!(error.starts_with(&file.display().to_string()) && error.contains(wanted), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
