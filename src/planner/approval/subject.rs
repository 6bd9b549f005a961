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

/// Reasons why a request cannot be parsed.
const NOT_PEM: &str = "is not PEM of a CERTIFICATE REQUEST";
const NOT_A_REQUEST: &str = "is no PKCS #10";
const NOT_TEXT: &str = "has a name that is no text";

impl Subject {
    /// Parses a request in PEM. The API server has verified its signature.
    pub fn of(pem: &[u8]) -> Result<Self, &'static str> {
        // Exactly one block with nothing before it: otherwise the signer might read another block.
        let begins = std::str::from_utf8(pem).is_ok_and(|text| {
            text.starts_with("-----BEGIN CERTIFICATE REQUEST-----") && text.matches("-----BEGIN").count() == 1
        });
        let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
        let block = block.filter(|_| begins).ok_or(NOT_PEM)?;
        let (rest, request) =
            X509CertificationRequest::from_der(&block.contents).map_err(|_| NOT_A_REQUEST)?;
        if !rest.is_empty() {
            return Err(NOT_A_REQUEST);
        }
        let info = &request.certification_request_info;
        let mut found = Self::default();
        for attribute in info.subject.iter_attributes() {
            let text = || attribute.as_str().map(str::to_owned).map_err(|_| NOT_TEXT);
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
