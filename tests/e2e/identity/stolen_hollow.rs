//! The stolen token of the identity that hollow kubelets share: what it does not open. docs/security.md has the same table; each
//! line is tried here. By impersonation: the record of a token's calls would show rights that nobody needs.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod, Secret, ServiceAccount},
    storage::v1::CSINode,
};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use kube_node_api::NodeSet;
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, eventually, name};

const DOCS: &str = include_str!("../../../docs/security.md");
const SYSTEM: &str = "kube-system";
const OPERATOR: &str = "kube-node-system";
const LEASES: &str = "kube-node-lease";
/// Of a ServiceAccount in its namespace.
const GROUPS: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kube-node-system", "system:authenticated"];
/// A Node that is not hollow, its pod, and a pod that no Node has.
const REAL: &str = "stolen-real";
const PENDING: &str = "stolen-pending";
/// Who refuses.
const POLICY: &str = "policy of kube-node";
const RBAC: &str = "authorization";

/// As in docs/security.md.
const FORBIDDEN: [(&str, &str); 28] = [
    ("delete a pod of a Node that is not hollow", POLICY),
    ("write the status of a pod of a Node that is not hollow", POLICY),
    ("delete a pod that no Node has", POLICY),
    ("change the labels of a pod of a hollow Node", POLICY),
    ("change the annotations of a pod of a hollow Node", POLICY),
    ("give a hollow Node a label", POLICY),
    ("give a hollow Node an annotation", POLICY),
    ("give a hollow Node a finalizer", POLICY),
    ("give a hollow Node an owner", RBAC),
    ("request a token of a machine that is bound to no Node", POLICY),
    ("request a token of a machine for an hour", POLICY),
    ("renew the Lease of a Node that is not hollow", POLICY),
    ("the same with the label of hollow Nodes", POLICY),
    ("create the Lease of a Node that is not hollow", POLICY),
    ("write the status of a Node that is not hollow", POLICY),
    ("create the CSINode of a Node that is not hollow", POLICY),
    ("create a CSINode with drivers", POLICY),
    ("take the Lease by which operators elect their leader", POLICY),
    ("change a pod", RBAC),
    ("evict a pod", RBAC),
    ("delete a Lease", RBAC),
    ("create a Node", RBAC),
    ("delete a Node", RBAC),
    ("take a Node off the list of those that are not hollow", RBAC),
    ("list Secrets", RBAC),
    ("create a pod", RBAC),
    ("request a token of the operator", RBAC),
    ("scale a NodeSet", RBAC),
];

async fn create_csi_node(thief: &Client, name: &str, drivers: &Value) -> kube::Result<()> {
    let csi_node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
    let params = PostParams { dry_run: true, ..PostParams::default() };
    Api::<CSINode>::all(thief.clone())
        .create(&params, &serde_json::from_value(csi_node).unwrap())
        .await
        .map(drop)
}

/// Asks for a token of a hollow machine.
async fn request_token(thief: &Client, spec: Value) -> kube::Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), "kubemark");
    let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let params = PostParams::default();
    accounts
        .create_subresource("token", "kube-node-hollow-machine", &params, &wanted)
        .await
        .map(|_: Value| ())
}

/// One try, which changes nothing where it is let through.
async fn attempt(action: &str, thief: &Client, (hollow, hollow_pod): (&Node, &str)) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(thief.clone(), SYSTEM);
    let leases: Api<Lease> = Api::namespaced(thief.clone(), LEASES);
    let nodes: Api<Node> = Api::all(thief.clone());
    let (dry, post) = (
        PatchParams { dry_run: true, ..PatchParams::default() },
        PostParams { dry_run: true, ..PostParams::default() },
    );
    let remove = DeleteParams::default().grace_period(0).dry_run();
    let renewed = json!({"spec": {"holderIdentity": REAL, "renewTime": "2038-01-01T00:00:00.000000Z"}});
    let change_metadata = async |metadata: Value| {
        let change = Patch::Merge(json!({"metadata": metadata}));
        nodes.patch_status(&name(hollow), &dry, &change).await.map(drop)
    };
    match action {
        "delete a pod of a Node that is not hollow" => pods.delete(REAL, &remove).await.map(drop),
        "write the status of a pod of a Node that is not hollow" => {
            let change = json!({"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}});
            pods.patch_status(REAL, &dry, &Patch::Merge(change)).await.map(drop)
        }
        "delete a pod that no Node has" => pods.delete(PENDING, &remove).await.map(drop),
        "change the annotations of a pod of a hollow Node" => {
            let change = json!({"metadata": {"annotations": {"example.com/a": "b"}}});
            let pods: Api<Pod> = Api::default_namespaced(thief.clone());
            pods.patch_status(hollow_pod, &dry, &Patch::Merge(change)).await.map(drop)
        }
        "give a hollow Node a label" => {
            change_metadata(json!({"labels": {"node-role.kubernetes.io/infra": ""}})).await
        }
        "give a hollow Node an annotation" => {
            change_metadata(json!({"annotations": {"kube-node.io/applied-template": "{}"}})).await
        }
        "give a hollow Node a finalizer" => change_metadata(json!({"finalizers": ["example.com/a"]})).await,
        "give a hollow Node an owner" => {
            let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "0c0ffee0-0000-4000-8000-000000000000"});
            change_metadata(json!({"ownerReferences": [owner]})).await
        }
        "request a token of a machine that is bound to no Node" => {
            request_token(thief, json!({"expirationSeconds": 600})).await
        }
        "request a token of a machine for an hour" => {
            let (name, uid) = (&hollow.metadata.name, &hollow.metadata.uid);
            let node = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
            request_token(thief, json!({"expirationSeconds": 3600, "boundObjectRef": node})).await
        }
        "change the labels of a pod of a hollow Node" => {
            let change = json!({"metadata": {"labels": {"k8s-app": "kube-dns"}}});
            let pods: Api<Pod> = Api::default_namespaced(thief.clone());
            pods.patch_status(hollow_pod, &dry, &Patch::Merge(change)).await.map(drop)
        }
        "renew the Lease of a Node that is not hollow" => {
            leases.patch(REAL, &dry, &Patch::Merge(renewed)).await.map(drop)
        }
        "the same with the label of hollow Nodes" => {
            let mut change = renewed;
            change["metadata"] = json!({"labels": {"kube-node.io/node-controller": "hollow"}});
            leases.patch(REAL, &dry, &Patch::Merge(change)).await.map(drop)
        }
        "create the Lease of a Node that is not hollow" => {
            let labels = json!({"kube-node.io/node-controller": "hollow"});
            let lease = json!({"metadata": {"name": "stolen-silent", "labels": labels}});
            leases.create(&post, &serde_json::from_value(lease).unwrap()).await.map(drop)
        }
        "write the status of a Node that is not hollow" => {
            let change = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
            nodes.patch_status(REAL, &dry, &Patch::Strategic(change)).await.map(drop)
        }
        "create the CSINode of a Node that is not hollow" => create_csi_node(thief, REAL, &json!([])).await,
        "create a CSINode with drivers" => {
            let drivers = json!([{"name": "stolen.example.com", "nodeID": "a"}]);
            create_csi_node(thief, "stolen-new", &drivers).await
        }
        "take the Lease by which operators elect their leader" => {
            let leases: Api<Lease> = Api::namespaced(thief.clone(), OPERATOR);
            let lease = json!({"metadata": {"name": "kube-node-operator"}});
            leases.create(&post, &serde_json::from_value(lease).unwrap()).await.map(drop)
        }
        "change a pod" => {
            let change = json!({"spec": {"activeDeadlineSeconds": 1}});
            pods.patch(REAL, &dry, &Patch::Merge(change)).await.map(drop)
        }
        "evict a pod" => {
            let params = EvictParams { post_options: post, ..EvictParams::default() };
            pods.evict(REAL, &params).await.map(drop)
        }
        "delete a Lease" => leases.delete(REAL, &remove).await.map(drop),
        "create a Node" => {
            let node = json!({"metadata": {"name": "stolen-new"}});
            nodes.create(&post, &serde_json::from_value(node).unwrap()).await.map(drop)
        }
        "delete a Node" => nodes.delete(REAL, &remove).await.map(drop),
        "take a Node off the list of those that are not hollow" => {
            let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), OPERATOR);
            let change = json!({"metadata": {"annotations": {"kube-node.io/nodes-not-hollow": ""}}});
            accounts.patch("kube-node-operator", &dry, &Patch::Merge(change)).await.map(drop)
        }
        "list Secrets" => {
            Api::<Secret>::namespaced(thief.clone(), OPERATOR).list(&ListParams::default()).await.map(drop)
        }
        "create a pod" => {
            let spec = json!({"containers": [{"name": "main", "image": "example.com/main:1"}]});
            let pod = json!({"metadata": {"name": "stolen-new"}, "spec": spec});
            pods.create(&post, &serde_json::from_value(pod).unwrap()).await.map(drop)
        }
        "request a token of the operator" => {
            let accounts: Api<ServiceAccount> = Api::namespaced(thief.clone(), OPERATOR);
            let wanted =
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
            let params = PostParams::default();
            accounts
                .create_subresource("token", "kube-node-operator", &params, &wanted)
                .await
                .map(|_: Value| ())
        }
        "scale a NodeSet" => {
            let sets: Api<NodeSet> = Api::all(thief.clone());
            sets.patch_scale("stolen-hollow", &dry, &Patch::Merge(json!({"spec": {"replicas": 9}})))
                .await
                .map(drop)
        }
        other => panic!("nobody tries to {other}"),
    }
}

#[test]
fn the_docs_have_the_same_table() {
    let section = DOCS.split("<!-- stolen-hollow -->").nth(1).expect("a table between two marks");
    let rows: BTreeSet<&str> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    let wanted: Vec<String> = FORBIDDEN.iter().map(|(action, by)| format!("| {action} | {by} |")).collect();
    assert_eq!(rows, wanted.iter().map(String::as_str).collect());
}

#[tokio::test]
async fn a_stolen_hollow_token_is_good_for_hollow_nodes_alone() {
    let own = Fixture::new(&CLUSTER, "stolen-hollow", 1, class_spec()).await;
    let node = own.settled(1).await.remove(0);
    let hollow = name(&node);
    let target = (&node, "stolen-hollow");
    let pods: Api<Pod> = Api::namespaced(own.client.clone(), SYSTEM);
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), LEASES);
    for node in [REAL, "stolen-silent"] {
        create(&own.nodes, json!({"metadata": {"name": node}})).await.unwrap();
    }
    create(&leases, json!({"metadata": {"name": REAL}, "spec": {"holderIdentity": REAL}})).await.unwrap();
    for (pod, place) in
        [(REAL, json!({"nodeName": REAL})), (PENDING, json!({"nodeSelector": {"no": "such"}}))]
    {
        let mut spec = json!({
            "containers": [{"name": "main", "image": "example.com/main:1"}],
            "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
        });
        spec.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        create(&pods, json!({"metadata": {"name": pod}, "spec": spec})).await.unwrap();
    }
    own.pod_on(&hollow, "stolen-hollow", json!({}), json!({})).await;

    for identity in ["kube-node-hollow-host", "kube-node-hollow"] {
        let user = format!("system:serviceaccount:{OPERATOR}:{identity}");
        let thief = CLUSTER.client_as(&user, &GROUPS).await;

        // It is good for what hollow kubelets do.
        let condition = json!({"status": {"conditions": [{"type": "example.com/Tried", "status": "True"}]}});
        let params = PatchParams::default();
        let mine: Api<Pod> = Api::default_namespaced(thief.clone());
        mine.patch_status("stolen-hollow", &params, &Patch::Strategic(&condition)).await.unwrap();
        mine.delete("stolen-hollow", &DeleteParams::default().dry_run()).await.unwrap();
        let renew = json!({"spec": {"renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()}});
        let own_leases: Api<Lease> = Api::namespaced(thief.clone(), LEASES);
        own_leases.patch(&hollow, &params, &Patch::Merge(renew)).await.unwrap();

        // The operator lists a new Node within seconds.
        eventually("the real Nodes are protected", LONG, async || {
            attempt(FORBIDDEN[0].0, &thief, target).await.err()?;
            attempt("create the Lease of a Node that is not hollow", &thief, target).await.err()
        })
        .await;
        for (action, by) in FORBIDDEN {
            if action.starts_with("take the Lease") && identity == "kube-node-hollow" {
                continue;
            }
            let message = match attempt(action, &thief, target).await {
                Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
                other => panic!("{identity}: {action}: {other:?}"),
            };
            let by_policy = message.contains("ValidatingAdmissionPolicy 'kube-node-");
            assert_eq!(by_policy, by == POLICY, "{identity}: {action}: {message}");
        }
    }

    let lease = leases.get(&hollow).await.unwrap();
    assert_eq!(
        lease.metadata.labels.unwrap()["kube-node.io/node-controller"],
        "hollow",
        "its renewals cost nothing"
    );
    for pod in [REAL, PENDING] {
        pods.delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let _ = own.pods.delete("stolen-hollow", &DeleteParams::default().grace_period(0)).await;
    for node in [REAL, "stolen-silent"] {
        own.nodes.delete(node, &DeleteParams::default()).await.unwrap();
    }
    let _ = leases.delete(REAL, &DeleteParams::default()).await;
    own.clean_up().await;
}
