//! From the token to the certificate, what can be done with it, and how it is renewed.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use machine_identity::{Identity, IdentityError};
use serde_json::json;

use super::{Stage, obtain, whoami};
use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, create, eventually};

#[tokio::test]
async fn a_machine_comes_by_its_identity_and_may_do_its_work() {
    let stage = Stage::new("flow.example.com").await;
    stage.approve();
    let uid = stage.node("flow-1").await;
    let options = stage.options("flow-1", &uid).await;
    let client = obtain(&options).await.client();

    let me = whoami(&client).await;
    assert_eq!(me["username"], "system:node:flow-1");
    assert_eq!(me["groups"], json!(["system:nodes", "system:authenticated"]));
    let requests = stage.requests("flow-1").await;
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].spec.username.as_deref(),
        Some("system:serviceaccount:kubemark:kube-node-machine")
    );
    let approved = &requests[0].status.as_ref().unwrap().conditions.as_ref().unwrap()[0];
    assert_eq!((approved.type_.as_str(), approved.reason.as_deref()), ("Approved", Some("MachineApproved")));

    // Its Node, its Lease, its pods.
    let nodes: Api<Node> = Api::all(client.clone());
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now()}]}});
    nodes.patch_status("flow-1", &PatchParams::default(), &Patch::Strategic(ready)).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({"metadata": {"name": "flow-1"}, "spec": {"holderIdentity": "flow-1"}});
    create(&leases, lease).await.unwrap();
    let own = Fixture::nothing(&CLUSTER, "flow").await;
    own.pod_on("flow-1", "flow-pod", json!({}), json!({})).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::default_namespaced(client);
    // The graph of Node authorization follows the pods by a watch.
    eventually("it sees its pod", LONG, async || pods.get("flow-pod").await.ok()).await;
    let running = json!({"status": {"phase": "Running"}});
    pods.patch_status("flow-pod", &PatchParams::default(), &Patch::Strategic(running)).await.unwrap();
    pods.delete("flow-pod", &DeleteParams::default().grace_period(0)).await.unwrap();

    // What is kept is private, and enough for the next start.
    let file = options.store.state_dir.join("client.pem");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = whoami(&obtain(&options).await.client()).await;
    assert_eq!(again["extra"], me["extra"], "the same certificate");
    assert_eq!(stage.requests("flow-1").await.len(), 1);
    stage.remove("flow-1").await;
}

#[tokio::test]
async fn a_certificate_is_renewed_by_itself_and_connections_follow() {
    let stage = Stage::new("renewal.example.com").await;
    stage.approve();
    let uid = stage.node("renewal-1").await;
    let mut options = stage.options("renewal-1", &uid).await;
    options.lifetime = Duration::from_mins(10);
    // The signer lets a life begin five minutes before it is signed: of 15 minutes, 5 are over at once.
    options.renew_at = 0.336..=0.336;
    let identity = obtain(&options).await;
    let client = identity.client();
    let before = whoami(&client).await;
    let stored = std::fs::read(options.store.state_dir.join("client.pem")).unwrap();
    let keeping = tokio::spawn(identity.keep());
    let after = eventually("another certificate is shown", LONG, async || {
        let me = whoami(&client).await;
        (me["extra"] != before["extra"]).then_some(me)
    })
    .await;
    assert_eq!(after["username"], "system:node:renewal-1");
    let requests = stage.requests("renewal-1").await;
    assert_eq!(requests[1].spec.username.as_deref(), Some("system:node:renewal-1"), "with the certificate");
    assert_ne!(
        std::fs::read(options.store.state_dir.join("client.pem")).unwrap(),
        stored,
        "the new one is kept"
    );
    assert!(!keeping.is_finished());

    // Without its machine there is no other one, and the machine learns why.
    stage.provider.machines.lock().unwrap().clear();
    let ended = tokio::time::timeout(LONG, keeping).await.expect("it ends").unwrap();
    assert!(matches!(&ended, IdentityError::Denied { reason, .. } if reason == "NoMachine"), "{ended}");
    stage.remove("renewal-1").await;
}

#[tokio::test]
async fn a_token_that_is_replaced_is_read_anew_and_one_whose_node_is_gone_says_so() {
    let stage = Stage::new("token.example.com").await;
    stage.approve();
    let uid = stage.node("token-1").await;
    let options = stage.options("token-1", &uid).await;
    let good = std::fs::read_to_string(&options.store.bootstrap).unwrap();

    // Nothing there yet: the kubelet may be about to write it.
    std::fs::remove_file(&options.store.bootstrap).unwrap();
    let waiting = tokio::spawn(Identity::obtain(options.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!waiting.is_finished());
    std::fs::write(&options.store.bootstrap, &good).unwrap();
    let identity = waiting.await.unwrap().unwrap();
    assert_eq!(whoami(&identity.client()).await["username"], "system:node:token-1");

    // Its Node is made anew under its name: the token was of the one before.
    std::fs::remove_file(options.store.state_dir.join("client.pem")).unwrap();
    stage.remove("token-1").await;
    stage.node("token-1").await;
    let error = eventually("the API server forgets the token", LONG, async || {
        // For some seconds it remembers having taken it; then the approver refuses.
        match Identity::obtain(options.clone()).await.err().expect("no identity") {
            IdentityError::Denied { reason, .. } => {
                assert_eq!(reason, "NodeReplaced");
                None
            }
            other => Some(other),
        }
    })
    .await;
    assert!(matches!(error, IdentityError::NodeGone { .. }), "{error}");
    assert!(error.to_string().contains("token-1"), "{error}");
    stage.remove("token-1").await;
}
