//! Requests, parsed: verb, kind, object and options.

use std::collections::BTreeMap;

use http::{Method, Uri, header, request::Parts};

use super::kinds::Kind;

/// A parsed request.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// HTTP method.
    pub method: Method,
    /// Target of the request.
    pub target: Target,
    /// Parameters of the query.
    pub query: BTreeMap<String, String>,
    /// Media type of the body.
    pub content_type: String,
    /// Form of the answer.
    pub form: Form,
}

/// Target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Objects of a kind, by its position in the table of kinds.
    Objects {
        /// The kind.
        kind: usize,
        /// Namespace; None for all, and for a kind without namespaces.
        namespace: Option<String>,
        /// Name; None for the collection.
        name: Option<String>,
        /// Subresource.
        subresource: Option<String>,
    },
    /// A review, which is answered and not stored.
    Review,
    /// Another path.
    Other(String),
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// True for protobuf, false for JSON.
    pub protobuf: bool,
    /// True if only the metadata of objects is wanted.
    pub metadata: bool,
}

impl ApiRequest {
    /// Parses the head of a request.
    pub fn parse(head: &Parts) -> Self {
        let value = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let accept = value(header::ACCEPT);
        let metadata = accept.contains("as=PartialObjectMetadata");
        let query = head.uri.query().unwrap_or_default();
        Self {
            method: head.method.clone(),
            target: target(&head.uri),
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            content_type: value(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned(),
            form: Form { protobuf: accept.starts_with("application/vnd.kubernetes.protobuf"), metadata },
        }
    }

    /// A parameter that is set to true.
    pub fn has(&self, parameter: &str) -> bool {
        self.query.get(parameter).is_some_and(|value| value == "true" || value == "1")
    }

    /// A parameter, unless it is empty.
    pub fn text(&self, parameter: &str) -> Option<&str> {
        self.query.get(parameter).map(String::as_str).filter(|value| !value.is_empty())
    }
}

fn target(uri: &Uri) -> Target {
    let decoded = |part: &str| {
        if !part.contains('%') {
            return part.to_owned();
        }
        let pair = format!("a={part}").replace('+', "%2B");
        form_urlencoded::parse(pair.as_bytes()).next().map(|(_, part)| part.into_owned()).unwrap_or_default()
    };
    let parts: Vec<String> = uri.path().split('/').filter(|part| !part.is_empty()).map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let other = || Target::Other(uri.path().to_owned());
    let (group, rest) = match parts[..] {
        ["api", "v1", ref rest @ ..] => ("", rest),
        ["apis", group, _, ref rest @ ..] => (group, rest),
        _ => return other(),
    };
    if group == "authorization.k8s.io" || group == "authentication.k8s.io" {
        return Target::Review;
    }
    let (namespace, rest) = match *rest {
        ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (Some(namespace.to_owned()), rest),
        _ => (None, rest),
    };
    let (plural, name, subresource) = match *rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(name.to_owned()), None),
        [plural, name, subresource] => (plural, Some(name.to_owned()), Some(subresource.to_owned())),
        _ => return other(),
    };
    match Kind::find(group, plural) {
        Some(kind) => Target::Objects { kind, namespace, name, subresource },
        None => other(),
    }
}
