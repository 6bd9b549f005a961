//! Responses in the form that a request asks for: JSON or Protocol Buffers, whole objects or their metadata.

use std::borrow::Cow;

use axum::body::Body;
use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE};
use serde_json::{Value, json};

use super::{ApiServer, protobuf, refusal::Refusal, request::Form};

/// Media types.
pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Most encoded objects that are kept.
const ENCODED: usize = 1_000;

/// An object in the wanted form.
pub fn shown(object: &Value, form: Form) -> Cow<'_, Value> {
    if form.metadata && object["kind"] != "Status" {
        return Cow::Owned(json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
        }));
    }
    Cow::Borrowed(object)
}

pub fn success() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })
}

pub fn media(form: Form) -> &'static str {
    if form.protobuf { PROTOBUF } else { JSON }
}

pub fn refused(refusal: &Refusal, form: Form) -> Response<Body> {
    encoded(refusal.code, &refusal.status(), form)
}

pub fn encoded(code: u16, object: &Value, form: Form) -> Response<Body> {
    response(code, media(form), bytes_of(object, form).into())
}

pub fn bytes_of(object: &Value, form: Form) -> Vec<u8> {
    if form.protobuf { protobuf::object(object) } else { json_bytes(object) }
}

/// Text of a value: twice as fast as `to_string`.
pub fn json_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value is JSON")
}

pub fn response(code: u16, media: &str, body: Body) -> Response<Body> {
    Response::builder().status(code).header(CONTENT_TYPE, media).body(body).unwrap()
}

impl ApiServer {
    /// An object of the store in the wanted form. Clients read the same one often, or watch it at the same time.
    pub(super) fn encoded(&self, object: &Value, form: Form) -> Bytes {
        let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        let key = (version.unwrap_or_default(), form);
        let mut all = self.state.encoded.lock();
        if all.len() > ENCODED {
            all.clear();
        }
        all.entry(key).or_insert_with(|| bytes_of(&shown(object, form), form).into()).clone()
    }
}
