//! Kubeconfigs with embedded certificates and keys (no paths): a copy works anywhere on this machine.

use k8s_openapi::ByteString;
use serde_json::json;

use super::{pki::Identity, template::fill};

/// The kubeconfig of one user as YAML. `server` is a URL, `ca` a certificate in PEM.
pub fn render(server: &str, ca: &str, user: &str, identity: &Identity) -> String {
    let base64 = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let values = [
        ("server", json!(server)),
        ("ca", base64(ca)),
        ("user", json!(user)),
        ("certificate", base64(&identity.certificate)),
        ("key", base64(&identity.key)),
    ];
    // JSON strings are YAML strings.
    let values = values.map(|(name, value)| (name, value.to_string()));
    fill(include_str!("kubeconfig.yaml"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_reads_it_back() {
        let identity = Identity { certificate: "CERT".into(), key: "KEY".into() };
        let yaml = render("https://127.0.0.1:6443", "CA", "system:node:a", &identity);
        let read = kube::config::Kubeconfig::from_yaml(&yaml).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("kube-node"));
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("Q0E="));
        assert_eq!(read.auth_infos[0].name, "system:node:a");
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("Q0VSVA=="));
    }
}
