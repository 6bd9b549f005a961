//! Responses of the kubemark proxy itself, in the form that every Kubernetes client reads: a `Status`.

use std::error::Error;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};

/// A JSON response.
#[must_use]
pub fn json(code: StatusCode, value: &Value) -> Response {
    let mut response = (code, Body::from(value.to_string())).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A refusal. `reason` is a `StatusReason` of apimachinery (pkg/apis/meta/v1).
#[must_use]
pub fn refusal(code: StatusCode, reason: &str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code.as_u16(),
    });
    json(code, &status)
}

/// Response when the API server cannot be reached.
#[must_use]
pub fn unreachable(error: &dyn Error) -> Response {
    let mut message = "kube-node kubemark-proxy: the API server cannot be reached".to_owned();
    let mut cause = Some(error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
}

/// A success without an object.
#[must_use]
pub fn success() -> Response {
    json(
        StatusCode::OK,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
    )
}
