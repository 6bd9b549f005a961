//! Identity of a machine: the client certificate that it requests, and the `ServiceAccount`s whose tokens it starts with.

use std::time::Duration;

use crate::names;

/// Signer of kubelets' client certificates.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Key usages of such a certificate.
pub const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// Prefix of a node's user name.
pub const USER_PREFIX: &str = "system:node:";
/// Group of all nodes.
pub const GROUP: &str = "system:nodes";
/// Maximum lifetime that a request may ask for: limits the use of a stolen certificate.
pub const LIFETIME_MAX: Duration = Duration::from_hours(1);

/// The `ServiceAccount`s of machines, in the machines' namespace. A process that may request tokens of
/// one of them cannot pose as a machine of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Account of kubemark machines: the operator requests its tokens.
    Kubemark,
    /// Account of hollow machines: the operator or worker that runs them requests its tokens.
    Hollow,
}

impl Account {
    /// Both accounts.
    pub const ALL: [Self; 2] = [Self::Kubemark, Self::Hollow];

    /// Name of the `ServiceAccount`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubemark => names::MACHINE_SERVICE_ACCOUNT,
            Self::Hollow => names::HOLLOW_MACHINE_SERVICE_ACCOUNT,
        }
    }

    /// User name of the `ServiceAccount` in the machines' `namespace`.
    pub fn user(self, namespace: &str) -> String {
        format!("system:serviceaccount:{namespace}:{}", self.name())
    }
}
