//! Subject of a certificate request, parsed from its PKCS #10.

use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::ParsedExtension,
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    pem::Pem,
    prelude::FromDer,
};

/// Subject of a certificate request, and its other content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// All CNs.
    pub common_names: Vec<String>,
    /// All Os, which are the groups.
    pub organizations: Vec<String>,
    /// True if the subject has other attributes.
    pub has_others: bool,
    /// True if the request has subject alternative names.
    pub has_alternatives: bool,
    /// True if the request has other extensions or unknown attributes.
    pub has_extensions: bool,
}

/// The request cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The request is not one PEM block of a certificate request.
    #[error("is not PEM of a CERTIFICATE REQUEST")]
    NotPem,
    /// The content is not PKCS #10.
    #[error("is no PKCS #10")]
    NotARequest,
    /// A name is not text.
    #[error("has a name that is no text")]
    NotText,
}

impl Subject {
    /// Parses a request in PEM. The API server has verified its signature.
    pub fn of(pem: &[u8]) -> Result<Self, SubjectError> {
        // Exactly one block with nothing before it: otherwise the signer might read another block.
        let begins = std::str::from_utf8(pem).is_ok_and(|text| {
            text.starts_with("-----BEGIN CERTIFICATE REQUEST-----") && text.matches("-----BEGIN").count() == 1
        });
        let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
        let block = block.filter(|_| begins).ok_or(SubjectError::NotPem)?;
        let (rest, request) =
            X509CertificationRequest::from_der(&block.contents).map_err(|_| SubjectError::NotARequest)?;
        if !rest.is_empty() {
            return Err(SubjectError::NotARequest);
        }
        let info = &request.certification_request_info;
        let mut found = Self::default();
        for attribute in info.subject.iter_attributes() {
            let text = || attribute.as_str().map(str::to_owned).map_err(|_| SubjectError::NotText);
            let kind = attribute.attr_type();
            if *kind == OID_X509_COMMON_NAME {
                found.common_names.push(text()?);
            } else if *kind == OID_X509_ORGANIZATION_NAME {
                found.organizations.push(text()?);
            } else {
                found.has_others = true;
            }
        }
        for attribute in info.iter_attributes() {
            match attribute.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(wanted) => {
                    for extension in &wanted.extensions {
                        match extension.parsed_extension() {
                            ParsedExtension::SubjectAlternativeName(_) => found.has_alternatives = true,
                            _ => found.has_extensions = true,
                        }
                    }
                }
                _ => found.has_extensions = true,
            }
        }
        Ok(found)
    }
}
