//! Refusals, as the API server writes them (apimachinery, pkg/api/errors).

use serde_json::{Value, json};

/// A refused request.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// `reason` of the Status.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// Type and message of each cause, and the field that it is about.
    pub causes: Vec<(&'static str, String, String)>,
}

impl Refusal {
    /// Creates a refusal without causes.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), causes: Vec::new() }
    }

    /// An object or a path that does not exist.
    pub fn not_found(plural: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{plural} \"{name}\" not found"))
    }

    /// A write based on another version of the object.
    pub fn modified(plural: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(plural, name, why)
    }

    /// A write that contradicts the state of the object.
    pub fn conflict(plural: &str, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}"))
    }

    /// An object that is not valid, by one cause.
    pub fn invalid(kind: &str, name: &str, field: &str, cause: &'static str, why: &str) -> Self {
        let message = format!("{kind} \"{name}\" is invalid: {field}: {why}");
        Self { causes: vec![(cause, why.to_owned(), field.to_owned())], ..Self::new(422, "Invalid", message) }
    }

    /// A request that cannot be read.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A version that is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The Status that the client receives.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.causes.is_empty() {
            let causes = self.causes.iter();
            let causes = causes.map(|(reason, message, field)| {
                let mut cause = json!({ "reason": reason, "message": message });
                if !field.is_empty() {
                    cause["field"] = json!(field);
                }
                cause
            });
            status["details"] = json!({ "causes": causes.collect::<Vec<_>>() });
        }
        status
    }
}
