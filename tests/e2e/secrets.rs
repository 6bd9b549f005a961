//! Whoever may write Secrets of the operator's namespace and not read them gets none to see: every verb of the Role
//! `kube-node-admin` is tried, since the answer to a write shows the object.

use http::Request;
use k8s_openapi::api::{
    core::v1::{Pod, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{LONG, create, eventually};

const NAMESPACE: &str = "kube-node-system";
const NAME: &str = "secret-attack";
/// What must not be seen, and the same in base64.
const VALUE: (&str, &str) = ("of-somebody-else", "b2Ytc29tZWJvZHktZWxzZQ==");

/// Secrets that are there: name, type, labels, finalizers.
const VICTIMS: [(&str, &str, &str, bool); 5] = [
    ("sh.helm.release.v1.secret-attack.v1", "helm.sh/release.v1", "helm", false),
    ("kube-node-autoscaler-attack", "Opaque", "none", false),
    ("secret-attack-credentials", "Opaque", "none", false),
    ("secret-attack-in-use", "Opaque", "none", true),
    ("secret-attack-token", "kubernetes.io/service-account-token", "none", false),
];

/// Sends a request as it is; the answer's text, and whether it was an error.
async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> Result<String, String> {
    let request = Request::builder()
        .method(method)
        .uri(format!("/api/v1/namespaces/{NAMESPACE}/{path}"))
        .header(
            "content-type",
            match (method, body) {
                ("PATCH", Value::Array(_)) => "application/json-patch+json",
                ("PATCH", _) => "application/merge-patch+json",
                _ => "application/json",
            },
        )
        // Options in the query count only where there is no body.
        .body(if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() })
        .unwrap();
    client.request_text(request).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_write_shows_no_secret_to_whoever_may_not_read_it() {
    let admin = CLUSTER.client().await;
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), NAMESPACE);
    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), NAMESPACE);
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": NAME},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "kube-node-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": NAME}]});
    create(&bindings, binding).await.unwrap();
    for (name, r#type, owner, is_in_use) in VICTIMS {
        let annotations = json!({"kubernetes.io/service-account.name": "kube-node-operator"});
        let metadata = json!({
            "name": name, "labels": {"owner": owner},
            "annotations": if r#type.contains("token") { annotations } else { json!({}) },
            "finalizers": if is_in_use { json!(["example.com/in-use"]) } else { json!([]) },
        });
        let data = json!({"value": VALUE.0, "more": VALUE.0});
        create(&secrets, json!({"metadata": metadata, "type": r#type, "stringData": data})).await.unwrap();
    }
    eventually("the control plane fills in a token", LONG, async || {
        secrets.get("secret-attack-token").await.unwrap().data?.contains_key("token").then_some(())
    })
    .await;

    let thief = CLUSTER.client_as(NAME, &[]).await;
    let theirs: Api<Secret> = Api::namespaced(thief.clone(), NAMESPACE);
    eventually("the attacker is bound", LONG, async || {
        let secret = json!({"metadata": {"name": "secret-attack-new"}});
        let params = PostParams { dry_run: true, ..PostParams::default() };
        theirs.create(&params, &serde_json::from_value(secret).unwrap()).await.ok()
    })
    .await;

    let (delete, keep) = (json!({}), json!({"metadata": {"finalizers": ["example.com/mine"]}}));
    // The first shows the value in the answer, the second in the refusal of a label, before any policy runs.
    let moved = json!([{"op": "move", "from": "/data/value", "path": "/data/x"}]);
    let copied = json!([{"op": "copy", "from": "/data/value", "path": "/metadata/labels/a"}]);
    let dry = "?dryRun=All";
    for (name, ..) in VICTIMS {
        let of = |query: &str| format!("secrets/{name}{query}");
        let foreground =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"});
        let orphan = json!({"kind": "DeleteOptions", "apiVersion": "v1", "orphanDependents": true});
        let part = json!({"stringData": {"more": "x"}});
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        let tries = [
            ("GET", of(""), &delete),
            ("PATCH", of(""), &delete),
            ("PATCH", of(dry), &delete),
            ("PATCH", of(""), &part),
            ("PATCH", of(dry), &label),
            ("PATCH", of(""), &keep),
            ("PATCH", of(dry), &moved),
            ("PATCH", of(dry), &copied),
            ("PUT", of(""), &keep),
            ("DELETE", of(dry), &foreground),
            ("DELETE", of(""), &foreground),
            ("DELETE", of("?propagationPolicy=Orphan"), &Value::Null),
            ("DELETE", of("?orphanDependents=true&dryRun=All"), &Value::Null),
            ("DELETE", of(""), &orphan),
        ];
        for (method, path, body) in tries {
            let said = ask(&thief, method, &path, body).await;
            let said = said.expect_err(&format!("{method} {path} {body}"));
            assert!(!said.contains(VALUE.1) && !said.contains(VALUE.0), "{method} {path} {body}: {said}");
        }
    }
    // What is waited for is shown; what is of others is not to be deleted at all.
    for (name, r#type, ..) in VICTIMS.iter().filter(|(name, ..)| *name != "secret-attack-credentials") {
        let said = ask(&thief, "DELETE", &format!("secrets/{name}{dry}"), &delete).await.unwrap_err();
        assert!(said.contains("ValidatingAdmissionPolicy 'kube-node-secrets'"), "{name} {type}: {said}");
    }

    // None is made that somebody else fills, or takes for his own.
    let account = json!({"kubernetes.io/service-account.name": "kube-node-operator"});
    for secret in [
        json!({"metadata": {"name": "secret-attack-new", "annotations": account}, "type": "kubernetes.io/service-account-token"}),
        json!({"metadata": {"name": "sh.helm.release.v1.kube-node.v9"}}),
        json!({"metadata": {"name": "secret-attack-new", "labels": {"owner": "helm"}}}),
        json!({"metadata": {"generateName": "kube-node-autoscaler-"}}),
    ] {
        for query in ["", dry] {
            let said = ask(&thief, "POST", &format!("secrets{query}"), &secret).await;
            let said = said.expect_err(&secret.to_string());
            assert!(said.contains("ValidatingAdmissionPolicy 'kube-node-secrets'"), "{secret}: {said}");
        }
    }
    // Other ways to the operator's identity.
    let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), NAMESPACE);
    let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let params = PostParams::default();
    let answer: kube::Result<Value> =
        accounts.create_subresource("token", "kube-node-operator", &params, &wanted).await;
    assert!(matches!(answer, Err(kube::Error::Api(status)) if status.code == 403));
    let spec =
        json!({"serviceAccountName": "kube-node-operator", "containers": [{"name": "a", "image": "a"}]});
    let pods: Api<Pod> = Api::namespaced(thief.clone(), NAMESPACE);
    let pod = create(&pods, json!({"metadata": {"name": NAME}, "spec": spec})).await;
    assert!(matches!(pod, Err(kube::Error::Api(status)) if status.code == 403));

    // Credentials are made, replaced and deleted all the same.
    let new = json!({"metadata": {"name": "secret-attack-new"}, "stringData": {"kubeconfig": "first"}});
    create(&theirs, new).await.unwrap();
    for (name, finalizers, values) in [
        ("secret-attack-new", json!([]), json!({"kubeconfig": "second"})),
        ("secret-attack-credentials", json!([]), json!({"value": "a", "more": "b"})),
        ("secret-attack-in-use", json!(["example.com/in-use"]), json!({"other": "a"})),
    ] {
        let secret = json!({"metadata": {"name": name, "finalizers": finalizers}, "stringData": values});
        let secret = serde_json::from_value(secret).unwrap();
        let after = theirs.replace(name, &PostParams::default(), &secret).await.unwrap();
        let shown = serde_json::to_string(&after).unwrap();
        assert!(!shown.contains(VALUE.1), "{name}: {shown}");
    }
    for name in ["secret-attack-new", "secret-attack-credentials"] {
        let deleted = theirs.delete(name, &DeleteParams::default()).await.unwrap();
        assert!(deleted.is_right(), "{name}: only a status comes back");
    }

    for (name, ..) in VICTIMS {
        let _ = secrets.delete(name, &DeleteParams::default()).await;
    }
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    secrets.patch("secret-attack-in-use", &PatchParams::default(), &free).await.unwrap();
    bindings.delete(NAME, &DeleteParams::default()).await.unwrap();
}
