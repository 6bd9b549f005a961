//! Kubemark machines, as far as they go without a kubelet that would run them: what is created, what is told, and
//! that nothing is left. `tests/real_node` has the rest.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::{
    CLUSTER,
    refusals::{Policy, is_by_policy},
};
use kube_node_testing::{Fixture, LONG, condition, create, delete, eventually};

fn spec(more: &Value) -> Value {
    let mut spec =
        json!({"nodeController": "kubemark", "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

/// What is in the namespace of the machines for a set.
struct Machines {
    pods: Api<Pod>,
    secrets: Api<Secret>,
}

impl Machines {
    fn of(own: &Fixture) -> Self {
        Self {
            pods: Api::namespaced(own.client.clone(), "kubemark"),
            secrets: Api::namespaced(own.client.clone(), "kubemark"),
        }
    }

    /// Pods by the Node whose machine they are.
    async fn of_nodes(&self, nodes: &[Node]) -> BTreeMap<String, Pod> {
        let listed = self.pods.list(&ListParams::default().labels("name=hollow-node")).await.unwrap();
        let uids: BTreeMap<_, _> = nodes.iter().map(|node| (node.uid().unwrap(), node.name_any())).collect();
        let node = |pod: &Pod| uids.get(pod.labels().get("kube-node.io/node-uid")?).cloned();
        listed.into_iter().filter_map(|pod| Some((node(&pod)?, pod))).collect()
    }

    async fn all_for(&self, own: &Fixture, count: usize) -> BTreeMap<String, Pod> {
        eventually(&format!("{count} pods of {}", own.name), LONG, async || {
            let pods = self.of_nodes(&own.my_nodes().await).await;
            (pods.len() == count).then_some(pods)
        })
        .await
    }

    async fn nothing_is_left(&self, name: &str) {
        eventually(&format!("nothing of {name} is left"), LONG, async || {
            let begins = |found: &str| found.starts_with(name);
            let pods = self.pods.list(&ListParams::default()).await.unwrap();
            let secrets = self.secrets.list(&ListParams::default()).await.unwrap();
            let left =
                pods.iter().any(|p| begins(&p.name_any())) || secrets.iter().any(|s| begins(&s.name_any()));
            (!left).then_some(())
        })
        .await;
    }
}

/// Reason and message of what stands in the way of the machine of the set's only Node.
async fn machine_says(own: &Fixture, status: &str, reason: &str) -> String {
    eventually(&format!("{}: machine {status} {reason}", own.name), LONG, async || {
        let nodes = own.my_nodes().await;
        let condition = condition(nodes.first()?, "kube-node.io/Machine")?;
        (condition.status == status && condition.reason.as_deref() == Some(reason))
            .then(|| condition.message.clone().unwrap_or_default())
    })
    .await
}

/// How many seconds the token of a kubeconfig lives, by its own words.
fn life_of_token(kubeconfig: &[u8]) -> u64 {
    let kubeconfig: Value = serde_json::from_slice(kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap()
}

#[tokio::test]
async fn each_node_has_a_pod_and_a_secret_and_leaves_neither() {
    let own = Fixture::new(&CLUSTER, "pods-each", 2, spec(&json!({}))).await;
    let machines = Machines::of(&own);
    let pods = machines.all_for(&own, 2).await;
    for (node, pod) in &pods {
        let uid = &pod.labels()["kube-node.io/node-uid"];
        assert_eq!(pod.name_any(), format!("{node}-{}", &uid.replace('-', "")[..8]));
        assert!(
            pod.owner_references().is_empty(),
            "another cluster's garbage collector would take it for an orphan"
        );
        let secret = machines.secrets.get(&pod.name_any()).await.unwrap();
        let bootstrap = secret.data.unwrap().remove("bootstrap.kubeconfig").unwrap();
        assert!(life_of_token(&bootstrap.0) <= 11 * 60, "{} s", life_of_token(&bootstrap.0));
        let text = serde_json::to_string(pod).unwrap();
        assert!(!text.contains("eyJ"), "no token is in the pod: {text}");
    }
    let message = machine_says(&own, "False", "Unschedulable").await;
    assert!(message.contains("nodes are available"), "{message}");
    eventually("the set names both", LONG, async || {
        let waits = own.sets.get(&own.name).await.unwrap().status?.waits;
        waits.into_iter().find(|wait| wait.reason == "Unschedulable" && wait.nodes == 2)
    })
    .await;

    // The same machine again, under the same name.
    let (node, pod) = pods.iter().next().unwrap();
    machines.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("another pod of the same name", LONG, async || {
        let again = machines.of_nodes(&own.my_nodes().await).await.remove(node)?;
        (again.uid() != pod.uid() && again.name_any() == pod.name_any()).then_some(())
    })
    .await;

    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    machines.nothing_is_left("pods-each").await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_pod_that_ended_is_replaced_and_its_end_is_told() {
    let own = Fixture::new(&CLUSTER, "pods-dead", 1, spec(&json!({}))).await;
    let machines = Machines::of(&own);
    let (node, pod) = machines.all_for(&own, 1).await.pop_first().unwrap();
    let status =
        json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}});
    machines
        .pods
        .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    eventually("another pod", LONG, async || {
        let again = machines.of_nodes(&own.my_nodes().await).await.remove(&node)?;
        (again.uid() != pod.uid()).then_some(())
    })
    .await;
    let why = eventually("an event says why", LONG, async || own.event_of(&node, "Evicted").await).await;
    assert!(why.contains("low on memory"), "{why}");
    own.clean_up().await;
    machines.nothing_is_left("pods-dead").await;
}

#[tokio::test]
async fn what_a_file_needs_is_named_until_it_is_there() {
    let files = json!([{"path": "/etc/demo/key", "secretKeyRef": {"name": "pods-file", "key": "id"}, "permissions": "0600"}]);
    let own = Fixture::new(&CLUSTER, "pods-file", 1, spec(&json!({"provisioning": {"files": files}}))).await;
    let machines = Machines::of(&own);
    let message = machine_says(&own, "False", "ReferenceNotFound").await;
    assert_eq!(message, "file /etc/demo/key: there is no Secret pods-file in namespace kube-node-system");
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), "kube-node-system");
    create(&secrets, json!({"metadata": {"name": "pods-file"}, "stringData": {"other": "x"}})).await.unwrap();
    // Its author may not read the Secret: a class alone must not deliver it.
    let release = "kubectl -n kube-node-system label secret pods-file kube-node.io/machine-file=true";
    eventually("the release is asked for", LONG, async || {
        machine_says(&own, "False", "ReferenceNotFound").await.ends_with(release).then_some(())
    })
    .await;
    let label = json!({"metadata": {"labels": {"kube-node.io/machine-file": "true"}}});
    secrets.patch("pods-file", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    eventually("the key is named", LONG, async || {
        machine_says(&own, "False", "ReferenceNotFound").await.ends_with("has no key id").then_some(())
    })
    .await;
    let id = json!({"stringData": {"id": "secret-content"}});
    secrets.patch("pods-file", &PatchParams::default(), &Patch::Merge(id)).await.unwrap();
    let (_, pod) = machines.all_for(&own, 1).await.pop_first().unwrap();
    let copied = machines.secrets.get(&pod.name_any()).await.unwrap().data.unwrap();
    assert_eq!(copied["file-0"].0, b"secret-content");
    secrets.delete("pods-file", &DeleteParams::default()).await.unwrap();
    own.clean_up().await;
    machines.nothing_is_left("pods-file").await;
}

#[tokio::test]
async fn no_file_is_the_token_of_somebody_else() {
    let files = json!([{"path": "/etc/demo/token", "secretKeyRef": {"name": "pods-token", "key": "token"}}]);
    let labels = json!({"kube-node.io/machine-file": "true"});
    let own = Fixture::nothing(&CLUSTER, "pods-token").await;
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), "kube-node-system");
    let of_operator = json!({"kubernetes.io/service-account.name": "kube-node-operator"});
    let secret = json!({
        "metadata": {"name": "pods-token", "annotations": of_operator, "labels": labels},
        "type": "kubernetes.io/service-account-token",
    });
    create(&secrets, secret).await.unwrap();
    eventually("the control plane writes the token", LONG, async || {
        secrets.get("pods-token").await.unwrap().data?.get("token").map(drop)
    })
    .await;
    let spec = spec(&json!({"provisioning": {"files": files}}));
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": spec})).await.unwrap();
    own.create_set(1, json!({})).await;
    let message = machine_says(&own, "False", "InvalidMachine").await;
    let wanted = "file /etc/demo/token: Secret pods-token is of type kubernetes.io/service-account-token, and no machine";
    assert!(message.starts_with(wanted), "{message}");
    let machines = Machines::of(&own);
    assert!(machines.of_nodes(&own.my_nodes().await).await.is_empty());
    secrets.delete("pods-token", &DeleteParams::default()).await.unwrap();
    own.clean_up().await;
    machines.nothing_is_left("pods-token").await;
}

#[tokio::test]
async fn a_pod_that_is_refused_says_why() {
    let own = Fixture::without_set(&CLUSTER, "pods-refused", spec(&json!({}))).await;
    let expression = "!object.metadata.name.startsWith('pods-refused')";
    let policy = Policy::refuse(&own, ("", "pods"), &["CREATE"], expression).await;
    eventually("the policy works", LONG, async || {
        let pod = json!({"metadata": {"name": "pods-refused"},
            "spec": {"containers": [{"name": "a", "image": "example.com/a:1"}]}});
        let tried = create(&own.pods, pod).await;
        delete(&own.pods, "pods-refused", PropagationPolicy::Background).await;
        tried.err().filter(is_by_policy).map(drop)
    })
    .await;
    own.create_set(1, json!({})).await;
    let message = machine_says(&own, "False", "InvalidMachine").await;
    assert!(message.contains("not while somebody looks at it"), "{message}");
    policy.lift().await;
    own.clean_up().await;
}

#[tokio::test]
async fn settings_reach_a_living_machine() {
    let own = Fixture::new(&CLUSTER, "pods-settings", 1, spec(&json!({}))).await;
    let machines = Machines::of(&own);
    let (node, pod) = machines.all_for(&own, 1).await.pop_first().unwrap();
    own.patch_class(json!({"spec": {"failures": {"unhealthyDuration": "40s", "turnUnhealthyAfter": true}}}))
        .await;
    eventually("the pod has them", LONG, async || {
        let now = machines.of_nodes(&own.my_nodes().await).await.remove(&node)?;
        assert_eq!(now.uid(), pod.uid(), "the machine stays");
        now.annotations()["kube-node.io/settings"].contains("turnUnhealthyAfter").then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn credentials_are_checked_and_lead_to_the_other_cluster() {
    let own = Fixture::nothing(&CLUSTER, "pods-remote").await;
    let secrets: Api<Secret> = Api::namespaced(own.client.clone(), "kube-node-system");
    let class = spec(&json!({"credentialsSecretRef": {"name": "pods-remote"}}));
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
    own.create_set(1, json!({})).await;
    let machines = Machines::of(&own);
    let wait_for_message = async |what: &str| {
        eventually(what, LONG, async || {
            machine_says(&own, "False", "ProviderUnreachable").await.contains(what).then_some(())
        })
        .await;
    };
    wait_for_message("there is no Secret pods-remote in namespace kube-node-system").await;
    create(&secrets, json!({"metadata": {"name": own.name}, "stringData": {"config": "x"}})).await.unwrap();
    wait_for_message("has no key kubeconfig").await;
    let exec = json!({
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "id"}}}],
    });
    let set = async |kubeconfig: String| {
        let change = json!({"stringData": {"kubeconfig": kubeconfig}});
        secrets.patch(&own.name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    set(exec.to_string()).await;
    wait_for_message("uses exec").await;
    let cluster = json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
    set(json!({"clusters": [{"name": "c", "cluster": cluster}]}).to_string()).await;
    wait_for_message("write the server's authority into certificate-authority-data").await;
    set("users: confidential".to_owned()).await;
    wait_for_message("it is no kubeconfig in YAML").await;
    assert!(!machine_says(&own, "False", "ProviderUnreachable").await.contains("confidential"));
    // The cluster itself, as if it were another one.
    set(std::fs::read_to_string(CLUSTER.dir.join("operator.kubeconfig")).unwrap()).await;
    machines.all_for(&own, 1).await;
    let other = json!({"spec": {"credentialsSecretRef": {"name": "elsewhere"}}});
    let refused =
        own.classes.patch(&own.name, &PatchParams::default(), &Patch::Merge(other)).await.unwrap_err();
    assert!(refused.to_string().contains("credentialsSecretRef cannot change"), "{refused}");
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    machines.nothing_is_left("pods-remote").await;
    secrets.delete("pods-remote", &DeleteParams::default()).await.unwrap();
    own.clean_up().await;
}

#[tokio::test]
async fn a_machine_goes_though_its_cluster_lost_other_credentials() {
    let kubeconfig = std::fs::read_to_string(CLUSTER.dir.join("operator.kubeconfig")).unwrap();
    // Two Secrets that lead to one cluster: each shows the machines of both.
    let with_credentials = async |name: &str| {
        let own = Fixture::nothing(&CLUSTER, name).await;
        let secrets: Api<Secret> = Api::namespaced(own.client.clone(), "kube-node-system");
        let secret = json!({"metadata": {"name": name}, "stringData": {"kubeconfig": kubeconfig}});
        create(&secrets, secret).await.unwrap();
        let class = spec(&json!({"credentialsSecretRef": {"name": name}}));
        create(&own.classes, json!({"metadata": {"name": name}, "spec": class})).await.unwrap();
        own.create_set(1, json!({})).await;
        Machines::of(&own).all_for(&own, 1).await;
        (own, secrets)
    };
    let (first, secrets) = with_credentials("pods-first").await;
    let (second, _) = with_credentials("pods-second").await;
    let machines = Machines::of(&second);
    // The Secret stays until no class names it. The operator reads it every 10 s, and nothing shows that it has
    // read a Secret that no class names.
    secrets.delete("pods-first", &DeleteParams::default()).await.unwrap();
    first.clean_up().await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(secrets.get_opt("pods-first").await.unwrap().is_none());
    machine_says(&second, "False", "Unschedulable").await;
    second.clean_up().await;
    machines.nothing_is_left("pods-second").await;
    secrets.delete("pods-second", &DeleteParams::default()).await.unwrap();
}
