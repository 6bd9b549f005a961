//! Kubeconfigs with embedded certificates and keys (no paths): a copy works anywhere on this machine.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::pki::Identity;

/// The kubeconfig of one user as YAML. `server` is a URL, `ca` a certificate in PEM.
#[must_use]
pub fn render(server: &str, ca: &str, user: &str, identity: &Identity) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "kube-node",
            "cluster": {"server": server, "certificate-authority-data": base64(ca)},
        }],
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": base64(&identity.certificate),
                "client-key-data": base64(&identity.key),
            },
        }],
        "contexts": [{"name": "kube-node", "context": {"cluster": "kube-node", "user": user}}],
        "current-context": "kube-node",
    });
    // JSON is valid YAML, so it serves as the fallback if the YAML serialiser fails.
    serde_norway::to_string(&config).unwrap_or_else(|_| config.to_string())
}

fn base64(text: &str) -> Value {
    serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default()
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
