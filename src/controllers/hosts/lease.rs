//! The Lease of a worker and its pruned form.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube_node_api::names;
use kube_node_cache::View;

/// Prefix of the names of these Leases; an admission policy matches it.
const PREFIX: &str = "hollow-host";

/// Name of a worker's Lease.
pub fn lease_name(group: &str, host: &str) -> String {
    format!("{PREFIX}.{group}.{host}")
}

/// Pruned Lease of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    key: String,
    /// Group of the worker.
    pub group: Arc<str>,
    /// Name of the worker in its group.
    pub host: Arc<str>,
    /// Identity of the process that holds the Lease; empty once it has released it.
    pub holder: String,
    /// Resource version: each renewal changes it.
    pub version: String,
    /// Validity after a renewal; None once the worker has released the Lease.
    pub valid_for: Option<Duration>,
}

impl From<Lease> for HostView {
    fn from(lease: Lease) -> Self {
        let group: Arc<str> =
            lease.labels().get(names::LABEL_HOLLOW_HOSTS).map(String::as_str).unwrap_or_default().into();
        let name = lease.name_any();
        let host = name.strip_prefix(&lease_name(&group, "")).unwrap_or_default().into();
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            key: format!("{}/{name}", lease.metadata.namespace.unwrap_or_default()),
            group,
            host,
            version: lease.metadata.resource_version.unwrap_or_default(),
            valid_for: seconds.filter(|_| !holder.is_empty()).map(Duration::from_secs),
            holder,
        }
    }
}

impl View for HostView {
    fn key(&self) -> String {
        self.key.clone()
    }

    fn index_key(&self) -> Option<&str> {
        Some(&self.group)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(name: &str, holder: &str) -> HostView {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": "7", "labels": {"kube-node.io/hollow-hosts": "big"}},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 10},
        }))
        .unwrap();
        HostView::from(lease)
    }

    #[test]
    fn a_lease_tells_who_is_present() {
        let held = view(&lease_name("big", "h-0"), "h-0_1");
        assert_eq!(
            (&*held.group, &*held.host, held.valid_for),
            ("big", "h-0", Some(Duration::from_secs(10)))
        );
        assert_eq!((held.key(), held.version.as_str()), ("ns/hollow-host.big.h-0".to_owned(), "7"));
        assert_eq!(view(&lease_name("big", "h-0"), "").valid_for, None);
        assert_eq!(&*view("hollow-host.small.h-0", "x").host, "", "a label that lies names nobody");
    }
}
