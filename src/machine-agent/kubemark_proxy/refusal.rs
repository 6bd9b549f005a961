//! Responses of the kubemark proxy itself, in the form that every Kubernetes client reads: a `Status`.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_TYPE};
use kube::core::Status;
use kube_ext::error::chain;
use serde_json::{Value, json};

use super::condition_writer::ReadError;

/// Refusal of a request. Its reason is a `StatusReason` of apimachinery (pkg/apis/meta/v1).
pub struct Refusal(Status);

impl Refusal {
    /// A refusal with a message of its own.
    pub fn new(code: StatusCode, reason: &str, message: &str) -> Self {
        Self(Status::failure(message, reason).with_code(code.as_u16()))
    }

    /// A refusal whose message names the proxy: it appears in the log of kubemark.
    pub fn by_proxy(code: StatusCode, reason: &str, message: &str) -> Self {
        Self::new(code, reason, &format!("kube-node kubemark-proxy: {message}"))
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self(*status),
            error => {
                let message = format!("the API server cannot be reached: {}", chain(&error));
                Self::by_proxy(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
            }
        }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Gone(gone) => Self::new(StatusCode::FORBIDDEN, "Forbidden", &gone.to_string()),
            ReadError::Kube(error) => error.into(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut status = json!(self.0);
        status["apiVersion"] = json!("v1");
        status["kind"] = json!("Status");
        json(StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::BAD_GATEWAY), &status)
    }
}

/// A JSON response.
pub fn json(code: StatusCode, value: &Value) -> Response {
    (code, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
