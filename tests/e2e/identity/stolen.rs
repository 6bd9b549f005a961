//! A stolen credential: what whoever has it may not do. docs/security.md has the same table; each line is tried here.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Node, Pod, Secret, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use kube_node_api::{NodeClass, NodeSet};
use machine_identity::Identity;
use serde_json::{Value, json};

use super::{Stage, obtain};
use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, eventually};

const DOCS: &str = include_str!("../../../docs/security.md");

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Node authorization, or RBAC, which knows no node.
    Authorization,
    /// The admission plugin `NodeRestriction`.
    Restriction,
    /// A policy of ours.
    Policy,
}

impl By {
    const fn text(self) -> &'static str {
        match self {
            Self::Authorization => "authorization",
            Self::Restriction => "NodeRestriction",
            Self::Policy => "policy of kube-node",
        }
    }

    /// Whether a refusal reads as one of these.
    fn said(self, message: &str) -> bool {
        let by_policy = message.contains("ValidatingAdmissionPolicy 'kube-node-");
        let by_authorization =
            message.contains("cannot ") && message.contains("User \"system:node:stolen-bcdf24\"");
        match self {
            Self::Policy => by_policy,
            Self::Authorization => by_authorization,
            Self::Restriction => !by_policy && !by_authorization,
        }
    }
}

/// As in docs/security.md.
const FORBIDDEN: [(&str, By); 34] = [
    ("write the status of another Node", By::Restriction),
    ("label another Node", By::Restriction),
    ("change a label of its Node under kube-node.io/", By::Policy),
    ("change an annotation of its Node under kube-node.io/", By::Policy),
    ("change a label of its Node that steers pods", By::Policy),
    ("the same through the status of its Node", By::Policy),
    ("take a taint off its Node", By::Restriction),
    ("take the finalizer off its Node", By::Policy),
    ("open or close its Node to the scheduler", By::Policy),
    ("change the owners of its Node", By::Restriction),
    ("delete its Node", By::Authorization),
    ("create another Node", By::Restriction),
    ("create its Node again after that was deleted", By::Policy),
    ("create its Node again after its NodeSet was deleted", By::Policy),
    ("list all Nodes", By::Authorization),
    ("renew the Lease of another Node", By::Authorization),
    ("read a Lease in another namespace", By::Authorization),
    ("list all pods", By::Authorization),
    ("read a pod of another Node", By::Authorization),
    ("write the status of a pod of another Node", By::Restriction),
    ("delete a pod of another Node", By::Restriction),
    ("evict a pod of another Node", By::Restriction),
    ("create a pod", By::Restriction),
    ("read a Secret that no pod of it uses", By::Authorization),
    ("list Secrets", By::Authorization),
    ("read a ConfigMap that no pod of it uses", By::Authorization),
    ("request a token of a ServiceAccount that no pod of it has", By::Authorization),
    ("request a token for the machine of another Node", By::Authorization),
    ("ask for a certificate of another Node", By::Restriction),
    ("approve its own request for a certificate", By::Authorization),
    ("change a NodeClass", By::Authorization),
    ("scale a NodeSet", By::Authorization),
    ("read events", By::Authorization),
    ("bind itself to a role", By::Authorization),
];

/// Its Node, and somebody else's.
const MINE: &str = "stolen-bcdf24";
const OTHER: &str = "stolen-zzzz99";

/// One try, in the thief's name.
async fn attempt(action: &str, thief: &Client) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(thief.clone());
    let pods: Api<Pod> = Api::default_namespaced(thief.clone());
    let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), "kubemark");
    let params = PatchParams::default();
    let merge =
        async |node: &str, change: Value| nodes.patch(node, &params, &Patch::Merge(change)).await.map(drop);
    let status = json!({"status": {"phase": "Failed"}});
    let token = |bound: Value| {
        let spec = json!({"audiences": [], "boundObjectRef": bound});
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    };
    match action {
        "write the status of another Node" => {
            let change = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
            nodes.patch_status(OTHER, &params, &Patch::Strategic(change)).await.map(drop)
        }
        "label another Node" => merge(OTHER, json!({"metadata": {"labels": {"x": "y"}}})).await,
        "change a label of its Node under kube-node.io/" => {
            merge(MINE, json!({"metadata": {"labels": {"kube-node.io/revision": "v1-0"}}})).await
        }
        "change an annotation of its Node under kube-node.io/" => {
            merge(MINE, json!({"metadata": {"annotations": {"kube-node.io/applied-template": null}}})).await
        }
        "change a label of its Node that steers pods" => {
            merge(MINE, json!({"metadata": {"labels": {"tier": "platinum"}}})).await
        }
        "the same through the status of its Node" => {
            let change = json!({"metadata": {"labels": {"tier": null}}});
            nodes.patch_status(MINE, &params, &Patch::Strategic(change)).await.map(drop)
        }
        "take a taint off its Node" => merge(MINE, json!({"spec": {"taints": null}})).await,
        "take the finalizer off its Node" => merge(MINE, json!({"metadata": {"finalizers": null}})).await,
        "open or close its Node to the scheduler" => {
            merge(MINE, json!({"spec": {"unschedulable": true}})).await
        }
        "change the owners of its Node" => {
            let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"});
            merge(MINE, json!({"metadata": {"ownerReferences": [owner]}})).await
        }
        "delete its Node" => nodes.delete(MINE, &DeleteParams::default()).await.map(drop),
        "create another Node" => create(&nodes, json!({"metadata": {"name": "stolen-new"}})).await.map(drop),
        "create its Node again after that was deleted"
        | "create its Node again after its NodeSet was deleted" => {
            create(&nodes, json!({"metadata": {"name": MINE}})).await.map(drop)
        }
        "list all Nodes" => nodes.list(&ListParams::default()).await.map(drop),
        "renew the Lease of another Node" => {
            let leases: Api<Lease> = Api::namespaced(thief.clone(), "kube-node-lease");
            let change = json!({"spec": {"holderIdentity": OTHER}});
            leases.patch(OTHER, &params, &Patch::Merge(change)).await.map(drop)
        }
        "read a Lease in another namespace" => {
            let leases: Api<Lease> = Api::namespaced(thief.clone(), "kube-system");
            leases.get(MINE).await.map(drop)
        }
        "list all pods" => Api::<Pod>::all(thief.clone()).list(&ListParams::default()).await.map(drop),
        "read a pod of another Node" => pods.get("stolen-other").await.map(drop),
        "write the status of a pod of another Node" => {
            pods.patch_status("stolen-other", &params, &Patch::Strategic(status)).await.map(drop)
        }
        "delete a pod of another Node" => {
            pods.delete("stolen-other", &DeleteParams::default().grace_period(0)).await.map(drop)
        }
        "evict a pod of another Node" => pods.evict("stolen-other", &EvictParams::default()).await.map(drop),
        "create a pod" => {
            let spec =
                json!({"nodeName": MINE, "containers": [{"name": "main", "image": "example.com/main:1"}]});
            create(&pods, json!({"metadata": {"name": "stolen-new"}, "spec": spec})).await.map(drop)
        }
        "read a Secret that no pod of it uses" => {
            Api::<Secret>::default_namespaced(thief.clone()).get("stolen").await.map(drop)
        }
        "list Secrets" => Api::<Secret>::all(thief.clone()).list(&ListParams::default()).await.map(drop),
        "read a ConfigMap that no pod of it uses" => {
            let maps: Api<ConfigMap> = Api::namespaced(thief.clone(), "kube-system");
            maps.get("extension-apiserver-authentication").await.map(drop)
        }
        "request a token of a ServiceAccount that no pod of it has" => {
            let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), "kube-node-system");
            let (params, wanted) = (PostParams::default(), token(Value::Null));
            accounts
                .create_subresource("token", "kube-node-operator", &params, &wanted)
                .await
                .map(|_: Value| ())
        }
        "request a token for the machine of another Node" => {
            let wanted = token(json!({"apiVersion": "v1", "kind": "Node", "name": OTHER}));
            let params = PostParams::default();
            accounts
                .create_subresource("token", "kube-node-machine", &params, &wanted)
                .await
                .map(|_: Value| ())
        }
        "ask for a certificate of another Node" => {
            let csrs: Api<CertificateSigningRequest> = Api::all(thief.clone());
            csrs.create(&PostParams::default(), &super::forgeries::honest(OTHER)).await.map(drop)
        }
        "approve its own request for a certificate" => {
            let csrs: Api<CertificateSigningRequest> = Api::all(thief.clone());
            let name = csrs.create(&PostParams::default(), &super::forgeries::honest(MINE)).await?;
            let said = json!([{"type": "Approved", "status": "True", "reason": "Mine", "message": "mine"}]);
            let change = json!({"status": {"conditions": said}});
            csrs.patch_approval(&name.metadata.name.unwrap(), &params, &Patch::Merge(change)).await.map(drop)
        }
        "change a NodeClass" => {
            let classes: Api<NodeClass> = Api::all(thief.clone());
            classes
                .patch("stolen", &params, &Patch::Merge(json!({"spec": {"machineType": "x"}})))
                .await
                .map(drop)
        }
        "scale a NodeSet" => {
            let sets: Api<NodeSet> = Api::all(thief.clone());
            sets.patch_scale("stolen", &params, &Patch::Merge(json!({"spec": {"replicas": 9}})))
                .await
                .map(drop)
        }
        "read events" => Api::<Event>::all(thief.clone()).list(&ListParams::default()).await.map(drop),
        "bind itself to a role" => {
            let bindings: Api<ClusterRoleBinding> = Api::all(thief.clone());
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
            let who = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:node:stolen-bcdf24"}]);
            let binding = json!({"metadata": {"name": "stolen"}, "roleRef": role, "subjects": who});
            create(&bindings, binding).await.map(drop)
        }
        other => panic!("nobody tries to {other}"),
    }
}

#[test]
fn the_docs_have_the_same_table() {
    let section = DOCS.split("<!-- stolen -->").nth(1).expect("a table between two marks");
    let rows: BTreeSet<&str> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    let wanted: Vec<String> =
        FORBIDDEN.iter().map(|(action, by)| format!("| {action} | {} |", by.text())).collect();
    assert_eq!(rows, wanted.iter().map(String::as_str).collect());
}

#[tokio::test]
async fn a_stolen_credential_is_good_for_its_own_node_alone() {
    let own = Fixture::without_set(&CLUSTER, "stolen", class_spec()).await;
    own.create_set(0, json!({})).await;
    let stage = Stage::new("stolen.example.com").await;
    stage.approve();
    let uid = stage.node(MINE).await;
    stage.node(OTHER).await;
    own.pod_on(OTHER, "stolen-other", json!({}), json!({})).await;
    let secrets: Api<Secret> = Api::default_namespaced(stage.admin.clone());
    create(&secrets, json!({"metadata": {"name": "stolen"}, "stringData": {"a": "b"}})).await.unwrap();
    let options = stage.options(MINE, &uid).await;
    let thief: Identity = obtain(&options).await;
    let thief = thief.client();
    let nodes: Api<Node> = Api::all(thief.clone());

    // It is good for what a kubelet does, with or without labels of Kubernetes' own.
    let corrected = json!({"metadata": {"labels": {"kubernetes.io/arch": "arm64"}}});
    nodes.patch_status(MINE, &PatchParams::default(), &Patch::Strategic(corrected)).await.unwrap();
    // An API server takes some seconds to put a policy into effect.
    eventually("the policies are in effect", LONG, async || {
        attempt("open or close its Node to the scheduler", &thief).await.err()
    })
    .await;
    eventually("the operator has named the NodeSet to them", LONG, async || {
        let error = attempt("create its Node again after that was deleted", &thief).await.unwrap_err();
        matches!(error, kube::Error::Api(status) if status.code == 403).then_some(())
    })
    .await;

    for (action, by) in FORBIDDEN {
        if action == "create its Node again after that was deleted" {
            // While it is there, a kubelet that asks to create it is refused in the way that makes it read it.
            let there = attempt(action, &thief).await.unwrap_err();
            assert!(matches!(&there, kube::Error::Api(status) if status.code == 403), "{there}");
            assert_eq!(nodes.get(MINE).await.unwrap().metadata.uid.as_deref(), Some(uid.as_str()));
        }
        let refused = match attempt(action, &thief).await {
            Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
            other => panic!("{action}: {other:?}"),
        };
        assert!(by.said(&refused), "{action}: {by:?}: {refused}");
    }
    stage.remove(MINE).await;
    let again = attempt("create its Node again after that was deleted", &thief).await.unwrap_err();
    assert!(again.to_string().contains("its NodeSet creates its Nodes itself"), "{again}");
    assert!(stage.nodes.get_opt(MINE).await.unwrap().is_none());

    let _ = secrets.delete("stolen", &DeleteParams::default()).await;
    let _ = own.pods.delete("stolen-other", &DeleteParams::default().grace_period(0)).await;
    stage.remove(OTHER).await;
    own.clean_up().await;
    // The certificate outlives the NodeSet.
    let again = attempt("create its Node again after its NodeSet was deleted", &thief).await.unwrap_err();
    assert!(again.to_string().contains("its NodeSet creates its Nodes itself"), "{again}");
}
