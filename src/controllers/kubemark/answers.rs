//! Interpretation of responses of hosting clusters. No I/O.

use kube_ext::error::chain;

use crate::provider::ProviderError;

/// Ignores the failure of a write if the object is gone, or another one has its name.
pub fn gone_is_fine<T>(answer: kube::Result<T>) -> Result<(), ProviderError> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

/// The reason why the hosting cluster refused the machine.
pub fn refused(error: kube::Error) -> ProviderError {
    if let kube::Error::Api(status) = &error {
        let message = &status.message;
        match status.code {
            403 if message.contains("exceeded quota") => {
                return ProviderError::OutOfResources(message.clone());
            }
            403 if !message.contains("PodSecurity") => {}
            403 | 422 => return ProviderError::Invalid(format!("its pod is refused: {message}")),
            404 if message.contains("namespaces") => {
                return ProviderError::Unreachable(format!(
                    "the hosting cluster lacks a namespace ({message}): apply docs/hosting-cluster.yaml there"
                ));
            }
            _ => {}
        }
    }
    away(&error).map_or_else(|| ProviderError::retryable(error), ProviderError::Unreachable)
}

/// Message if the error is the cluster's fault and not the request's: it refuses every request of ours, or is
/// unreachable.
pub fn away(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
            Some(format!("the hosting cluster refuses: {}", status.message))
        }
        kube::Error::HyperError(_) | kube::Error::Service(_) => {
            Some(format!("the hosting cluster cannot be reached: {}", chain(error)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, message: &str) -> kube::Error {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn a_cluster_that_refuses_is_told_from_a_pod_that_is_refused() {
        for (code, message, reason) in [
            (403, "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1", "OutOfResources"),
            (403, "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"", "InvalidMachine"),
            (403, "secrets is forbidden: User \"b\" cannot patch resource", "ProviderUnreachable"),
            (401, "Unauthorized", "ProviderUnreachable"),
            (404, "namespaces \"kubemark\" not found", "ProviderUnreachable"),
            (422, "Pod \"a\" is invalid", "InvalidMachine"),
            (500, "etcdserver: leader changed", "ProviderFailed"),
        ] {
            let error = refused(answer(code, message));
            assert_eq!(error.reason(), reason, "{code} {message}");
        }
        for (code, is_fine) in [(404, true), (409, true), (403, false)] {
            assert_eq!(gone_is_fine(Err::<(), _>(answer(code, "forbidden"))).is_ok(), is_fine, "{code}");
        }
    }
}
