//! Whom a request for a certificate names, read from its PKCS #10.

use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::ParsedExtension,
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    pem::Pem,
    prelude::FromDer,
};

/// Whom it names, and what else it asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Every CN.
    pub common_names: Vec<String>,
    /// Every O: the groups.
    pub organizations: Vec<String>,
    /// Whether there are other attributes.
    pub has_others: bool,
    /// Whether it asks for subject alternative names.
    pub has_alternatives: bool,
    /// Whether it asks for other extensions, or has attributes that are not known here.
    pub has_extensions: bool,
}

/// Why a request cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Not PEM of a request.
    #[error("is not PEM of a CERTIFICATE REQUEST")]
    NotPem,
    /// No PKCS #10.
    #[error("is no PKCS #10")]
    NotARequest,
    /// A name that is no text.
    #[error("has a name that is no text")]
    NotText,
}

impl Subject {
    /// Reads a request in PEM. The API server has checked its signature.
    pub fn of(pem: &[u8]) -> Result<Self, SubjectError> {
        // One block and nothing before it: else the signer might read another one than we do.
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
