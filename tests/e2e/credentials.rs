//! The Secrets that classes name stay while they are needed, and go after.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, always, create, delete, eventually};

const NAMESPACE: &str = "kube-node-system";
const FINALIZER: &str = "kube-node.io/in-use";

fn secrets(own: &Fixture) -> Api<Secret> {
    Api::namespaced(own.client.clone(), NAMESPACE)
}

/// A class whose machines are pods in the cluster that this Secret leads to.
async fn class(own: &Fixture, secret: &str) {
    let spec = json!({
        "nodeController": "kubemark",
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "credentialsSecretRef": {"name": secret},
    });
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": spec})).await.unwrap();
}

/// One that leads to the cluster itself, as if it were another one.
async fn secret(own: &Fixture, name: &str) {
    let kubeconfig = std::fs::read_to_string(CLUSTER.dir.join("operator.kubeconfig")).unwrap();
    let secret = json!({"metadata": {"name": name}, "stringData": {"kubeconfig": kubeconfig}});
    create(&secrets(own), secret).await.unwrap();
}

async fn is_held(own: &Fixture, name: &str) -> Option<bool> {
    let secret = secrets(own).get_opt(name).await.unwrap()?;
    Some(secret.finalizers().iter().any(|finalizer| finalizer == FINALIZER))
}

async fn held(own: &Fixture, name: &str, wanted: Option<bool>) {
    eventually(&format!("Secret {name}: held: {wanted:?}"), LONG, async || {
        (is_held(own, name).await == wanted).then_some(())
    })
    .await;
}

async fn class_is_gone(own: &Fixture) {
    eventually(&format!("class {} is gone", own.name), LONG, async || {
        own.classes.get_opt(&own.name).await.unwrap().is_none().then_some(())
    })
    .await;
}

/// What the class says of its credentials.
async fn wait_for_reason(own: &Fixture, reason: &str) -> String {
    eventually(&format!("{}: {reason}", own.name), LONG, async || {
        let conditions = own.classes.get(&own.name).await.unwrap().status?.conditions;
        let degraded = conditions.into_iter().find(|c| c.type_ == "Credentials")?;
        assert_eq!(degraded.status == "True", degraded.reason == "Kept", "{degraded:?}");
        (degraded.reason == reason).then_some(degraded.message)
    })
    .await
}

#[tokio::test]
async fn a_secret_that_was_deleted_serves_until_its_class_is_gone() {
    let own = Fixture::nothing(&CLUSTER, "creds-kept").await;
    class(&own, "creds-kept").await;
    let message = wait_for_reason(&own, "SecretNotFound").await;
    assert_eq!(message, "there is no Secret creds-kept in namespace kube-node-system: create it");
    secret(&own, "creds-kept").await;
    held(&own, "creds-kept", Some(true)).await;
    wait_for_reason(&own, "Kept").await;

    secrets(&own).delete("creds-kept", &DeleteParams::default()).await.unwrap();
    let message = wait_for_reason(&own, "SecretDeleted").await;
    assert!(message.contains("it serves until this class is gone"), "{message}");
    eventually("an event says so", LONG, async || own.event_of("creds-kept", "SecretDeleted").await).await;
    // A machine is made by it all the same, and taken away.
    own.create_set(1, json!({})).await;
    let pods: Api<Pod> = Api::namespaced(own.client.clone(), "kubemark");
    let of_set = async || {
        let listed = pods.list(&ListParams::default()).await.unwrap();
        listed.iter().filter(|pod| pod.name_any().starts_with("creds-kept-")).count()
    };
    eventually("its machine's pod", LONG, async || (of_set().await == 1).then_some(())).await;
    delete(&own.classes, "creds-kept", PropagationPolicy::Background).await;
    always("the Secret stays with its class", std::time::Duration::from_secs(3), async || {
        is_held(&own, "creds-kept").await == Some(true)
    })
    .await;
    delete(&own.sets, "creds-kept", PropagationPolicy::Background).await;
    held(&own, "creds-kept", None).await;
    own.clean_up().await;
    assert_eq!(of_set().await, 0);
}

#[tokio::test]
async fn a_secret_of_two_classes_stays_for_either_and_for_none() {
    let (one, other) =
        (Fixture::nothing(&CLUSTER, "creds-one").await, Fixture::nothing(&CLUSTER, "creds-other").await);
    secret(&one, "creds-shared").await;
    for own in [&one, &other] {
        class(own, "creds-shared").await;
        wait_for_reason(own, "Kept").await;
    }
    held(&one, "creds-shared", Some(true)).await;
    delete(&one.classes, &one.name, PropagationPolicy::Background).await;
    class_is_gone(&one).await;
    assert_eq!(is_held(&one, "creds-shared").await, Some(true));
    class(&one, "creds-shared").await;
    wait_for_reason(&one, "Kept").await;
    // At once: neither holds it for the other.
    tokio::join!(
        delete(&one.classes, &one.name, PropagationPolicy::Background),
        delete(&other.classes, &other.name, PropagationPolicy::Background),
    );
    held(&one, "creds-shared", Some(false)).await;
    class_is_gone(&one).await;
    // A class whose finalizer somebody takes off tells nobody that it goes.
    class(&one, "creds-shared").await;
    held(&one, "creds-shared", Some(true)).await;
    wait_for_reason(&one, "Kept").await;
    delete(&one.classes, &one.name, PropagationPolicy::Background).await;
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let _ = one.classes.patch(&one.name, &PatchParams::default(), &none).await;
    held(&one, "creds-shared", Some(false)).await;
    secrets(&one).delete("creds-shared", &DeleteParams::default()).await.unwrap();
    for own in [one, other] {
        own.clean_up().await;
    }
}

/// Credentials are the operator's to keep, and nobody else's Secrets.
#[tokio::test]
async fn the_operator_changes_secrets_in_its_namespace_only_and_lists_none_there() {
    let may = |verb: &str, namespace: &str| {
        let output = CLUSTER.try_kubectl(&[
            "auth",
            "can-i",
            verb,
            "secrets",
            "-n",
            namespace,
            "--as=system:serviceaccount:kube-node-system:kube-node-operator",
        ]);
        output.status.success()
    };
    assert!(may("patch", NAMESPACE) && may("get", NAMESPACE));
    for verb in ["list", "watch", "create", "update", "delete"] {
        assert!(!may(verb, NAMESPACE), "{verb}");
    }
    for verb in ["get", "list", "patch"] {
        assert!(!may(verb, "default"), "{verb}");
    }
}
