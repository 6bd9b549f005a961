//! Attack by search: whoever has the credential of an identity sends random requests at the objects around it. What succeeds beyond the
//! model is a finding. By impersonation: the record of a token's calls would show rights that nobody needs.
//!
//! `KUBE_NODE_ATTACKS=SEED:COUNT` chooses the seed and the number of requests of each identity, such as `7:10000`.

mod model;
mod requests;

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    coordination::v1::Lease,
    core::v1::{Node, Pod, Secret},
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PropagationPolicy},
    client::Body,
};
use kube_node_testing::{Fixture, LONG, api_server::Random, class_spec, create, delete, eventually};
use serde_json::json;
use tokio::time::sleep;

use self::{
    model::{HOLLOW, IDENTITIES, Identity, MINE, REAL},
    requests::{Attack, VERBS},
};
use crate::CLUSTER;

/// Seed and number of requests of each identity that `cargo test` runs.
const USUAL: (u64, u64) = (1, 1_000);
/// Requests at once.
const CONCURRENCY: usize = 8;
/// What became of the requests of an identity.
#[derive(Debug, Default)]
struct Outcome {
    succeeded: usize,
    refused: usize,
    others: usize,
    findings: Vec<String>,
}

/// Verbs that no request of their own shows: those that the API server allows.
async fn special_verbs(identity: &Identity, client: &Client) -> Vec<String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut findings = Vec::new();
    for (verb, group, resource) in [
        ("impersonate", "", "users"),
        ("impersonate", "", "groups"),
        ("impersonate", "", "serviceaccounts"),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
        ("bind", "rbac.authorization.k8s.io", "clusterroles"),
        ("approve", "certificates.k8s.io", "signers"),
        ("sign", "certificates.k8s.io", "signers"),
        ("*", "*", "*"),
    ] {
        let attributes =
            json!({"verb": verb, "group": group, "resource": resource, "namespace": "kube-node-system"});
        let review = json!({"metadata": {}, "spec": {"resourceAttributes": attributes}});
        let answer = create(&reviews, review).await.unwrap();
        if answer.status.unwrap().allowed {
            findings.push(format!("{}: may {verb} {resource}", identity.name));
        }
    }
    findings
}

async fn attack(identity: &Identity, seed: u64, count: u64) -> Outcome {
    let client = CLUSTER.client_as(identity.user, identity.groups).await;
    let random = Random::new(seed);
    let answers = stream::iter(0..count).map(|number| {
        let mut random = random.apart(number);
        // Most of them are near what the identity may do: with one of its rules, or with another verb.
        let mut granted = if number % 4 < 3 { identity.draw(&mut random) } else { None };
        if let Some((verb, _)) = granted.as_mut().filter(|_| number % 4 == 2) {
            *verb = VERBS[random.below(VERBS.len())];
        }
        let attack = Attack::draw(&mut random, granted);
        let client = &client;
        async move {
            let line = format!("{} {}", attack.request().method(), attack.request().uri());
            let ask = async || client.send(attack.request().map(Body::from)).await;
            let mut answer = ask().await.unwrap_or_else(|error| panic!("{line}: {error}"));
            // An API server that is busy says so before it authorizes.
            for _ in 0..60 {
                if answer.status() != StatusCode::TOO_MANY_REQUESTS {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
                answer = ask().await.unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            let code = answer.status().as_u16();
            let body = answer.into_body().collect_bytes().await.unwrap_or_default();
            // As authorization says it, and admission does not.
            let is_unauthorized = code == 403 && String::from_utf8_lossy(&body).contains("\\\" cannot ");
            (number, attack, line, code, is_unauthorized)
        }
    });
    let mut outcome = Outcome { findings: special_verbs(identity, &client).await, ..Outcome::default() };
    let mut answers = std::pin::pin!(answers.buffer_unordered(CONCURRENCY));
    while let Some((number, attack, line, code, is_unauthorized)) = answers.next().await {
        match code {
            200..300 => outcome.succeeded += 1,
            403 => outcome.refused += 1,
            _ => outcome.others += 1,
        }
        let is_beyond = match code {
            200..300 => !identity.may(&attack),
            // What authorization lets pass may still be refused by admission.
            _ => !is_unauthorized && !identity.is_authorized(&attack),
        };
        if is_beyond {
            outcome.findings.push(format!(
                "{}, request {number} of seed {seed}: {code} {line} {attack:?}",
                identity.name
            ));
        }
    }
    outcome
}

/// Nodes, pods and roles that the requests are about.
async fn set_up(own: &Fixture, admin: &Client) {
    let labels =
        json!({"kube-node.io/nodeclass": own.name, "kube-node.io/node-controller": "attack.example.com"});
    create(&own.nodes, json!({"metadata": {"name": MINE, "labels": labels}})).await.unwrap();
    create(&own.nodes, json!({"metadata": {"name": REAL}})).await.unwrap();
    let labels = json!({"kube-node.io/nodeclass": own.name});
    create(&own.nodes, json!({"metadata": {"name": HOLLOW, "labels": labels}})).await.unwrap();
    for node in [MINE, REAL, HOLLOW] {
        own.pod_on(node, node, json!({}), json!({"automountServiceAccountToken": false})).await;
    }
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-node-lease");
    for node in [MINE, REAL] {
        create(&leases, json!({"metadata": {"name": node}, "spec": {"holderIdentity": node}})).await.unwrap();
    }
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "kube-node-system");
    create(&secrets, json!({"metadata": {"name": "attack"}, "data": {"value": "c2VjcmV0"}})).await.unwrap();
    let group = "rbac.authorization.k8s.io";
    for (role, user) in [
        ("kube-node-view", "attack-viewer"),
        ("kube-node-developer", "attack-developer"),
        ("kube-node-admin", "attack-admin"),
    ] {
        let subjects = json!([{"apiGroup": group, "kind": "User", "name": user}]);
        let role_ref = |kind: &str| json!({"apiGroup": group, "kind": kind, "name": role});
        let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
        let binding =
            json!({"metadata": {"name": user}, "roleRef": role_ref("ClusterRole"), "subjects": subjects});
        create(&bindings, binding).await.unwrap();
        for namespace in ["kube-node-system", "kube-node-lease", "kubemark"]
            .into_iter()
            .filter(|_| role == "kube-node-admin")
        {
            let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), namespace);
            let binding =
                json!({"metadata": {"name": user}, "roleRef": role_ref("Role"), "subjects": subjects});
            create(&bindings, binding).await.unwrap();
        }
    }
}

async fn clean_up(own: Fixture, admin: &Client) {
    let force = DeleteParams::default().grace_period(0);
    for node in [MINE, REAL, HOLLOW] {
        let _ = own.pods.delete(node, &force).await;
        delete(&own.nodes, node, PropagationPolicy::Background).await;
        let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-node-lease");
        let _ = leases.delete(node, &DeleteParams::default()).await;
    }
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "kube-node-system");
    delete(&secrets, "attack", PropagationPolicy::Background).await;
    for user in ["attack-viewer", "attack-developer", "attack-admin"] {
        delete(&Api::<ClusterRoleBinding>::all(admin.clone()), user, PropagationPolicy::Background).await;
    }
    for namespace in ["kube-node-system", "kube-node-lease", "kubemark"] {
        let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), namespace);
        delete(&bindings, "attack-admin", PropagationPolicy::Background).await;
    }
    own.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_identity_does_more_than_the_model_says() {
    let asked = std::env::var("KUBE_NODE_ATTACKS").ok();
    let (seed, count) = asked.map_or(USUAL, |text| {
        let parts =
            text.split_once(':').and_then(|(seed, count)| Some((seed.parse().ok()?, count.parse().ok()?)));
        parts.unwrap_or_else(|| {
            panic!("KUBE_NODE_ATTACKS is a seed and a number, such as 7:10000, not {text}")
        })
    });
    let own = Fixture::without_set(&CLUSTER, "attack", class_spec()).await;
    let admin = CLUSTER.client().await;
    set_up(&own, &admin).await;
    // The roles are bound, and the operator has listed the Nodes that are not hollow.
    let worker = CLUSTER.client_as(IDENTITIES[0].user, IDENTITIES[0].groups).await;
    let pods: Api<Pod> = Api::default_namespaced(worker);
    let bound: Api<Node> = Api::all(CLUSTER.client_as("attack-admin", &["system:authenticated"]).await);
    eventually("policies and roles hold", LONG, async || {
        let remove = DeleteParams::default().dry_run();
        let is_refused =
            pods.delete(REAL, &remove).await.is_err() && pods.delete(MINE, &remove).await.is_err();
        (is_refused && bound.get(REAL).await.is_ok()).then_some(())
    })
    .await;
    let mut outcomes = BTreeMap::new();
    for identity in &IDENTITIES {
        outcomes.insert(identity.name, attack(identity, seed, count).await);
    }
    clean_up(own, &admin).await;
    let mut findings = Vec::new();
    for (name, Outcome { succeeded, refused, others, findings: found }) in outcomes {
        println!("{name}: {succeeded} succeeded, {refused} refused, {others} answered otherwise");
        findings.extend(found);
    }
    assert!(findings.is_empty(), "{} beyond the model:\n{}", findings.len(), findings.join("\n"));
}
