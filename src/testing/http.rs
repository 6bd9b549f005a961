//! Single HTTP requests to processes and kubelets, over TLS or without.

use std::thread;

use kube::{Client, Config, client::Body};

use crate::LONG;

/// A request that is not sent yet.
#[derive(Clone, Debug)]
pub struct Request {
    url: String,
    method: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Files with a certificate and its key.
    identity: Option<(String, String)>,
}

/// What a server of plain HTTP answers to GET, if it answers with success.
pub fn get(url: impl Into<String>) -> Option<String> {
    let (code, answer) = Request::get(url).answer()?;
    (200..300).contains(&code).then_some(answer)
}

impl Request {
    /// A GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self { url: url.into(), method: "GET", headers: Vec::new(), body: Vec::new(), identity: None }
    }

    /// With this method.
    pub fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    /// With one more header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With a bearer token.
    pub fn bearer(self, token: &str) -> Self {
        self.header("Authorization", format!("Bearer {token}"))
    }

    /// With a body.
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// With a client certificate: the files of it and of its key.
    pub fn identity(self, certificate: &str, key: &str) -> Self {
        Self { identity: Some((certificate.to_owned(), key.to_owned())), ..self }
    }

    /// The status code and the answer; None where nobody answers. Whose certificate a server has is not asked.
    pub fn answer(&self) -> Option<(u16, String)> {
        let request = self.clone();
        // Tests that are tasks of a runtime cannot wait for another one on their own thread.
        let sent = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(request.send())
        });
        sent.join().expect("the request does not panic").ok()
    }

    async fn send(self) -> anyhow::Result<(u16, String)> {
        let url: http::Uri = self.url.parse()?;
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let base = self.url.strip_suffix(&path).unwrap_or(&self.url);
        let mut config = Config::new(base.parse()?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.connect_timeout = Some(LONG);
        config.read_timeout = Some(LONG);
        if let Some((certificate, key)) = self.identity {
            config.auth_info.client_certificate = Some(certificate);
            config.auth_info.client_key = Some(key);
        }
        let mut request = http::Request::builder().method(self.method).uri(path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let response = Client::try_from(config)?.send(request.body(Body::from(self.body))?).await?;
        let code = response.status().as_u16();
        let answer = response.into_body().collect_bytes().await?;
        Ok((code, String::from_utf8(answer.to_vec())?))
    }
}
