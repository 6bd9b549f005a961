//! The server that makes a registry's tokens, and the exchange of an identity token for an access token of one repository.
//!
//! Some logins leave an identity token instead of a password, as those of Azure do: a refresh token of OAuth 2, by which docker
//! and podman ask the server that the registry names (distribution.github.io/distribution/spec/auth/oauth).
//!
//! Invariants: an identity token goes to that server alone, never along a redirect. No credential goes there by http, except
//! where the registry itself is asked by http. No error quotes a token.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use http_auth::parser::ChallengeParser;
use oci_client::secrets::RegistryAuth;
use reqwest::{
    Client, StatusCode, Url,
    header::{HeaderMap, WWW_AUTHENTICATE},
    redirect::Policy,
};
use serde::Deserialize;

use super::Repository;
use crate::http_client;

/// Time limit for each of the two requests.
const LIMIT: Duration = Duration::from_secs(30);
/// Name of this program for the server.
const CLIENT_ID: &str = "kube-node";

/// Where a registry has its tokens made.
#[derive(Debug, PartialEq, Eq)]
struct Issuer {
    realm: String,
    service: String,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
}

/// Refuses a registry that has its tokens made by a server without https, unless the registry itself is asked by http: the
/// server is sent the user's password.
pub(super) async fn check_issuer(repository: &Repository, plain_http: bool) -> anyhow::Result<()> {
    let (challenge, _) = Challenge::of(repository, plain_http).await?;
    match challenge {
        Challenge::Bearer(issuer) => issuer.check(repository, plain_http),
        Challenge::Nothing | Challenge::Other => Ok(()),
    }
}

/// What a registry asks for before it answers.
enum Challenge {
    Nothing,
    Bearer(Issuer),
    Other,
}

impl Challenge {
    /// Asks a registry. Returns the client, too, for requests to the issuer.
    async fn of(repository: &Repository, plain_http: bool) -> anyhow::Result<(Self, Client)> {
        let scheme = if plain_http { "http" } else { "https" };
        let url = format!("{scheme}://{}/v2/", repository.reference("latest").resolve_registry());
        let url = Url::parse(&url).with_context(|| format!("{} is no host", repository.registry()))?;
        let name = url.host_str().unwrap_or_default();
        let client = http_client::build(name, |builder| builder.redirect(Policy::none()).timeout(LIMIT))?;
        let answer = client.get(url).send().await;
        let answer =
            answer.map_err(|error| super::refusal::unreachable_by(&error.without_url(), repository))?;
        let challenge = match issuer(answer.headers()) {
            _ if answer.status() == StatusCode::OK => Self::Nothing,
            Some(issuer) => Self::Bearer(issuer),
            None => Self::Other,
        };
        Ok((challenge, client))
    }
}

impl Issuer {
    fn check(&self, repository: &Repository, plain_http: bool) -> anyhow::Result<()> {
        ensure!(
            plain_http || self.realm.starts_with("https://"),
            "{} has its tokens made by {}, which does not speak https: no credential is sent there",
            repository.registry(),
            self.realm
        );
        Ok(())
    }
}

/// The credential for pushes to a repository; [`RegistryAuth::Anonymous`] if the registry asks for none.
pub(super) async fn exchange(
    token: &str,
    repository: &Repository,
    plain_http: bool,
) -> anyhow::Result<RegistryAuth> {
    let registry = repository.registry();
    let (challenge, client) = Challenge::of(repository, plain_http).await?;
    let issuer = match challenge {
        Challenge::Nothing => return Ok(RegistryAuth::Anonymous),
        Challenge::Bearer(issuer) => issuer,
        Challenge::Other => bail!(
            "{registry} takes no identity token: log in by name and access token, docker login --username NAME {registry}"
        ),
    };
    issuer.check(repository, plain_http)?;
    let Issuer { realm, service } = issuer;
    let scope = format!("repository:{}:pull,push", repository.name());
    let form = [
        ("grant_type", "refresh_token"),
        ("service", &service),
        ("client_id", CLIENT_ID),
        ("scope", &scope),
        ("refresh_token", token),
    ];
    let failed = || format!("{realm} makes no token of the identity token for {registry}");
    let answer = client.post(&realm).form(&form).send().await;
    let answer = answer.map_err(|error| anyhow!(error.without_url())).with_context(failed)?;
    let status = answer.status();
    ensure!(
        status == StatusCode::OK,
        "{}: it answers {status}; docker login {registry}, or podman login {registry}, writes a new one",
        failed()
    );
    let body = answer.bytes().await.map_err(|error| anyhow!(error.without_url())).with_context(failed)?;
    // The error would quote what the answer has instead, which may be a token.
    let answer = serde_json::from_slice(&body).map_err(|_| anyhow!("the answer has no access_token"));
    let Answer { access_token } = answer.with_context(failed)?;
    Ok(RegistryAuth::Bearer(access_token))
}

/// The issuer that a refusal names.
fn issuer(headers: &HeaderMap) -> Option<Issuer> {
    let text = headers.get(WWW_AUTHENTICATE)?.to_str().ok()?;
    let mut challenges = ChallengeParser::new(text).filter_map(Result::ok);
    let bearer = challenges.find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))?;
    let param = |name: &str| {
        let mut params = bearer.params.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        params.next().map(|(_, value)| value.to_unescaped())
    };
    Some(Issuer { realm: param("realm")?, service: param("service").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read, Write},
        net::TcpListener,
        sync::mpsc::{Receiver, channel},
        thread,
    };

    use super::*;

    /// A registry that names itself as the issuer, and answers what it is asked for a token. Returns its address, and what it
    /// was sent.
    fn registry(answer: &'static str) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sent, received) = channel();
        let realm = format!("http://{address}/token");
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut reader = BufReader::new(connection.try_clone().unwrap());
                let (mut first, mut length) = (String::new(), 0);
                reader.read_line(&mut first).unwrap();
                for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty())
                {
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                        length = value.parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let response = if first.starts_with("GET /v2/ ") {
                    format!(
                        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{realm}\",service=\"a registry\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                } else {
                    sent.send(format!("{} {}", first.trim(), String::from_utf8(body).unwrap())).unwrap();
                    answer.to_owned()
                };
                connection.write_all(response.as_bytes()).unwrap();
            }
        });
        (address, received)
    }

    async fn exchanged(address: &str, plain_http: bool) -> anyhow::Result<RegistryAuth> {
        exchange("a secret", &Repository::parse(&format!("{address}/me/x")).unwrap(), plain_http).await
    }

    #[tokio::test]
    async fn an_identity_token_becomes_an_access_token_of_the_repository() {
        let (address, sent) = registry(
            "HTTP/1.1 200 OK\r\nContent-Length: 23\r\nConnection: close\r\n\r\n{\"access_token\": \"abc\"}",
        );
        assert!(exchanged(&address, true).await.unwrap() == RegistryAuth::Bearer("abc".to_owned()));
        assert_eq!(
            sent.recv().unwrap(),
            "POST /token HTTP/1.1 grant_type=refresh_token&service=a+registry&client_id=kube-node&scope=repository%3Ame%2Fx%3Apull%2Cpush&refresh_token=a+secret"
        );
    }

    #[tokio::test]
    async fn a_refused_token_is_not_quoted_and_follows_no_redirect() {
        for (answer, wanted) in [
            (
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 8\r\nConnection: close\r\n\r\na secret",
                "it answers 401 Unauthorized; docker login 127.0.0.1:",
            ),
            (
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                "it answers 307 Temporary Redirect",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\na secret",
                "makes no token of the identity token",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n\"a secret\"",
                "the answer has no access_token",
            ),
        ] {
            let (address, sent) = registry(answer);
            let error = format!("{:#}", exchanged(&address, true).await.err().unwrap());
            assert!(error.contains(wanted) && !error.contains("a secret"), "{error}");
            assert!(sent.recv().unwrap().starts_with("POST /token "));
            assert!(sent.try_recv().is_err(), "nothing is asked after it");
        }
    }

    #[test]
    fn a_server_of_tokens_speaks_https_where_the_registry_does() {
        let repository = Repository::parse("a.example/me/x").unwrap();
        let of = |realm: &str| Issuer { realm: realm.to_owned(), service: String::new() };
        assert!(of("https://auth.example").check(&repository, false).is_ok());
        assert!(of("http://auth.example").check(&repository, true).is_ok());
        let error = of("http://auth.example").check(&repository, false).unwrap_err().to_string();
        assert!(
            error.contains("by http://auth.example, which does not speak https: no credential"),
            "{error}"
        );
    }

    #[test]
    fn the_issuer_is_that_of_the_bearer_challenge() {
        let issuer = |text: &str| issuer(&HeaderMap::from_iter([(WWW_AUTHENTICATE, text.parse().unwrap())]));
        let of = |realm: &str, service: &str| Issuer { realm: realm.to_owned(), service: service.to_owned() };
        assert_eq!(
            issuer(r#"Bearer realm="https://a.example/oauth2/token",service="a.example",scope="x""#),
            Some(of("https://a.example/oauth2/token", "a.example"))
        );
        assert_eq!(
            issuer(r#"Basic realm="r", bearer realm="https://b.example""#),
            Some(of("https://b.example", ""))
        );
        for other in ["Basic realm=\"r\"", "Bearer service=\"a\"", "?"] {
            assert_eq!(issuer(other), None, "{other}");
        }
    }
}
