//! Responses of the kubemark proxy itself, in the form that every Kubernetes client reads: a `Status`.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_TYPE};
use kube_ext::error::chain;
use serde_json::{Value, json};

use super::{condition_writer::ReadError, state::Gone};

/// Refusal of a request.
pub struct Refusal {
    /// HTTP status.
    pub code: StatusCode,
    /// A `StatusReason` of apimachinery (pkg/apis/meta/v1).
    pub reason: String,
    /// Message for people.
    pub message: String,
}

impl Refusal {
    /// A refusal by the proxy itself, which the message names: it appears in the log of kubemark.
    pub fn new(code: StatusCode, reason: &str, message: &str) -> Self {
        Self { code, reason: reason.to_owned(), message: format!("kube-node kubemark-proxy: {message}") }
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self {
                code: StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY),
                reason: status.reason,
                message: status.message,
            },
            error => {
                let message = format!("the API server cannot be reached: {}", chain(&error));
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
            }
        }
    }
}

impl From<Gone> for Refusal {
    fn from(gone: Gone) -> Self {
        Self { code: StatusCode::FORBIDDEN, reason: "Forbidden".to_owned(), message: gone.to_string() }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Gone(gone) => gone.into(),
            ReadError::Kube(error) => (*error).into(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { code, reason, message } = self;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": reason, "message": message, "code": code.as_u16(),
        });
        json(code, &status)
    }
}

/// A JSON response.
#[must_use]
pub fn json(code: StatusCode, value: &Value) -> Response {
    (code, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
