//! Responses in the form that a request asks for: JSON or Protocol Buffers, whole objects or their metadata.

use std::borrow::Cow;

use axum::body::Body;
use http::{Response, header::CONTENT_TYPE};
use serde_json::{Value, json};

use super::{protobuf, refusal::Refusal, request::Form};

/// Media types.
pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

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
    let bytes = if form.protobuf { protobuf::object(object) } else { json_bytes(object) };
    response(code, media(form), bytes.into())
}

/// Text of a value: twice as fast as `to_string`.
pub fn json_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value is JSON")
}

pub fn response(code: u16, media: &str, body: Body) -> Response<Body> {
    Response::builder().status(code).header(CONTENT_TYPE, media).body(body).unwrap()
}
