//! API transport at the least cost to the API server: bodies as protobuf or as patches, responses always as
//! protobuf.
//!
//! Every request has a time limit, and every refusal is a typed error. Nothing is retried here: the caller
//! knows whether a retry is safe.

use std::time::Duration;

use futures::future::OptionFuture;
use http::{
    Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use k8s_pb::apimachinery::pkg::{
    apis::meta::v1,
    runtime::{TypeMeta, Unknown},
};
use kube::{Client, client::Body as Bytes, core::Status};
use prost::Message;
use tokio::time::timeout;

use crate::rate::Rate;

/// Time limit of a request, its response included.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Media type of Kubernetes' protobuf envelope.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Media type of an object's metadata in that envelope.
const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// User agent; the API server makes the name before the slash the field manager of a write.
pub const AGENT: &str = concat!("kube-node-hollow/", env!("CARGO_PKG_VERSION"));
/// First bytes of the envelope (apimachinery, runtime/serializer/protobuf).
const MAGIC: [u8; 4] = *b"k8s\0";
/// Longest excerpt of a response in unknown form that an error quotes, in bytes.
const EXCERPT: usize = 200;

/// Request body.
#[derive(Clone, Debug)]
pub enum Body {
    /// No body.
    None,
    /// No body; of the object, only its metadata is requested.
    Metadata,
    /// A whole object, as [`envelope`] writes it.
    Object(Vec<u8>),
    /// A JSON merge patch.
    MergePatch(Vec<u8>),
    /// A strategic merge patch.
    StrategicPatch(Vec<u8>),
    /// A JSON patch.
    JsonPatch(Vec<u8>),
    /// Options of a deletion, as JSON.
    Options(Vec<u8>),
}

/// Failed request.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The API server refused the request.
    #[error("the API server answers {} {}: {}", .0.code, .0.reason, .0.message)]
    Refused(Box<Status>),
    /// No response in time.
    #[error("no answer within {} s", TIME_LIMIT.as_secs())]
    Late,
    /// The request did not reach the API server, or its response was lost.
    #[error("the API server cannot be reached")]
    Unreachable(#[source] Box<kube::Error>),
    /// The response is no protobuf envelope.
    #[error("the answer does not begin as Kubernetes' protobuf does")]
    NoEnvelope,
    /// The response cannot be decoded as the expected message.
    #[error("the answer cannot be decoded")]
    Decode(#[from] prost::DecodeError),
    /// A frame of a watch has an impossible length, in bytes.
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    /// The request cannot be built.
    #[error("not a request")]
    Request(#[from] http::Error),
}

impl TransportError {
    /// HTTP status of a refusal.
    pub fn code(&self) -> Option<u16> {
        let Self::Refused(status) = self else { return None };
        Some(status.code)
    }

    /// Returns true if the server is overloaded or unreachable, so that other requests would fare no better.
    pub fn is_overload(&self) -> bool {
        matches!(self.label(), "overload" | "late" | "unreachable")
    }

    /// Metric label, from a small set of values.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Refused(status) => match status.code {
                404 => "gone",
                409 => "conflict",
                429 | 500.. => "overload",
                _ => "refused",
            },
            Self::Late => "late",
            Self::Unreachable(_) => "unreachable",
            Self::NoEnvelope | Self::Decode(_) | Self::TooLong(_) | Self::Request(_) => "invalid",
        }
    }
}

/// Metadata of any object; the rest of a response is skipped while decoding.
#[derive(Clone, PartialEq, Message)]
pub struct AnyObject {
    /// Metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<AnyMetadata>,
}

/// Metadata that a writer needs. Tags of meta/v1 `ObjectMeta`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AnyMetadata {
    /// Resource version of the written state.
    #[prost(string, optional, tag = "6")]
    pub resource_version: Option<String>,
}

impl AnyObject {
    /// Resource version of the written state; empty if the response has none.
    pub fn into_version(self) -> String {
        self.metadata.and_then(|metadata| metadata.resource_version).unwrap_or_default()
    }
}

/// Encodes an object in Kubernetes' protobuf envelope.
pub fn envelope(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    let unknown = Unknown {
        type_meta: Some(TypeMeta { api_version: Some(api_version.to_owned()), kind: Some(kind.to_owned()) }),
        raw: Some(object.encode_to_vec()),
        ..Unknown::default()
    };
    let mut bytes = Vec::with_capacity(MAGIC.len() + unknown.encoded_len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&unknown.encode_to_vec());
    bytes
}

/// Sends `body` to `path` of the API server and decodes the response. With a `rate`, the request waits for
/// the rate limit first, and the time limit starts after that.
pub async fn send<T: Message + Default>(
    client: &Client,
    rate: Option<&Rate>,
    method: Method,
    path: &str,
    body: Body,
) -> Result<T, TransportError> {
    let limited = OptionFuture::from(rate.map(|rate| rate.acquire(path))).await;
    let exchange = async {
        let accept = if matches!(body, Body::Metadata) { METADATA } else { PROTOBUF };
        let (content_type, bytes) = match body {
            Body::None | Body::Metadata => (PROTOBUF, Vec::new()),
            Body::Object(bytes) => (PROTOBUF, bytes),
            Body::MergePatch(bytes) => ("application/merge-patch+json", bytes),
            Body::StrategicPatch(bytes) => ("application/strategic-merge-patch+json", bytes),
            Body::JsonPatch(bytes) => ("application/json-patch+json", bytes),
            Body::Options(bytes) => ("application/json", bytes),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, content_type)
            .header(ACCEPT, accept)
            .header(USER_AGENT, AGENT)
            .body(Bytes::from(bytes))?;
        limited.map(|limited| request.extensions_mut().insert(limited));
        let (head, body) = client.send(request).await.map_err(unreachable)?.into_parts();
        let bytes = body.collect_bytes().await.map_err(unreachable)?;
        if head.status.is_success() { Ok(open(&bytes)?) } else { Err(refusal(head.status, &bytes)) }
    };
    timeout(TIME_LIMIT, exchange).await.unwrap_or(Err(TransportError::Late))
}

/// Decodes the message in an envelope.
fn open<T: Message + Default>(bytes: &[u8]) -> Result<T, TransportError> {
    Ok(T::decode(unwrap(bytes)?.as_slice())?)
}

/// The encoded message in an envelope.
pub fn unwrap(bytes: &[u8]) -> Result<Vec<u8>, TransportError> {
    let unknown = Unknown::decode(bytes.strip_prefix(&MAGIC).ok_or(TransportError::NoEnvelope)?)?;
    Ok(unknown.raw.unwrap_or_default())
}

/// Error of a refusal: as protobuf, as JSON (from proxies), or as plain text (from the server's filters).
pub fn refusal(code: StatusCode, bytes: &[u8]) -> TransportError {
    let status = match open(bytes) {
        Ok(status) => status_of(status),
        Err(_) => serde_json::from_slice(bytes).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT)]);
            Status::failure(text.trim(), code.canonical_reason().unwrap_or_default())
        }),
    };
    TransportError::Refused(status.with_code(code.as_u16()).boxed())
}

/// Error of a request that kube could not exchange.
pub(crate) fn unreachable(error: kube::Error) -> TransportError {
    TransportError::Unreachable(Box::new(error))
}

/// Converts a status without its details, which nobody reads of requests in protobuf.
pub(crate) fn status_of(status: v1::Status) -> Status {
    let (message, reason) = (status.message.unwrap_or_default(), status.reason.unwrap_or_default());
    let code = status.code.and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
    Status::failure(&message, &reason).with_code(code)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::future::join_all;
    use k8s_pb::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta as PbMeta};
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;
    use crate::rate::RateLimited;

    /// A request that waited longer for the rate limit than its time limit is not late, and does not wait for
    /// it again.
    #[tokio::test(start_paused = true)]
    async fn the_turn_of_a_request_is_not_its_time() {
        let server = service_fn(|request: Request<Bytes>| async move {
            let is_limited = request.extensions().get::<RateLimited>().is_some();
            let status = if is_limited { StatusCode::GONE } else { StatusCode::TOO_MANY_REQUESTS };
            Ok::<_, Infallible>(http::Response::builder().status(status).body(Bytes::empty()).unwrap())
        });
        let (client, rate) = (Client::new(server, "default"), Rate::default());
        let began = Instant::now();
        let calls = (0..1_000).map(|_| {
            send::<AnyObject>(&client, Some(&rate), Method::GET, "/api/v1/pods", Body::Object(vec![]))
        });
        let answers = join_all(calls).await;
        assert!(began.elapsed() > TIME_LIMIT, "{:?}", began.elapsed());
        assert!(answers.iter().all(|answer| matches!(answer, Err(error) if error.code() == Some(410))));
        let other = send::<AnyObject>(&client, None, Method::GET, "/api/v1/pods", Body::Object(vec![])).await;
        assert_eq!(other.unwrap_err().code(), Some(429));
    }

    #[test]
    fn an_envelope_opens_to_what_was_put_in() {
        let lease = Lease {
            metadata: Some(PbMeta {
                name: Some("a".to_owned()),
                resource_version: Some("7".to_owned()),
                ..PbMeta::default()
            }),
            spec: None,
        };
        let bytes = envelope("coordination.k8s.io/v1", "Lease", &lease);
        assert!(bytes.starts_with(b"k8s\0"));
        assert_eq!(open::<Lease>(&bytes).unwrap(), lease);
        assert_eq!(open::<AnyObject>(&bytes).unwrap().into_version(), "7");
    }

    #[test]
    fn a_refusal_is_read_in_every_form() {
        let status = v1::Status {
            reason: Some("NotFound".to_owned()),
            message: Some("no".to_owned()),
            ..v1::Status::default()
        };
        for (bytes, reason, message) in [
            (envelope("v1", "Status", &status), "NotFound", "no"),
            (br#"{"reason":"NotFound","message":"no"}"#.to_vec(), "NotFound", "no"),
            (b"too many\n".to_vec(), "Not Found", "too many"),
        ] {
            let error = refusal(StatusCode::NOT_FOUND, &bytes);
            let TransportError::Refused(status) = &error else { panic!("{error}") };
            assert_eq!((status.code, &*status.reason, &*status.message), (404, reason, message));
            assert_eq!(error.label(), "gone");
        }
    }
}
