//! What people may do: the table of docs/security.md, each cell tried, whether it says yes or no.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    certificates::v1::CertificateSigningRequest,
    core::v1::{ConfigMap, Node, Pod, Secret},
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use kube_node_api::{NodeClass, NodeSet};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, delete, eventually};

const DOCS: &str = include_str!("../../docs/security.md");
const NAMESPACE: &str = "kube-node-system";
/// Where there are Roles besides.
const NAMESPACES: [&str; 3] = [NAMESPACE, "kube-node-lease", "kubemark"];
/// What `doctor` says to those who lack nothing.
const ALL_COMMANDS: &str = "may use all commands";
/// The name of all that this test makes.
const NAME: &str = "roles";

/// Somebody who has one of the roles, and perhaps the Roles of the same name.
struct Person {
    role: String,
    has_namespaced: bool,
    user: String,
}

impl Person {
    /// As the heading of a column has it.
    fn of(heading: &str) -> Self {
        let role = heading.split('`').nth(1).unwrap().to_owned();
        let has_namespaced = heading.ends_with(" and its Roles");
        let user = format!("{NAME}-{role}{}", if has_namespaced { "-both" } else { "" });
        Self { role, has_namespaced, user }
    }

    async fn bind(&self, admin: &Client) {
        let group = "rbac.authorization.k8s.io";
        let binding = |kind: &str| {
            json!({"metadata": {"name": self.user},
                "roleRef": {"apiGroup": group, "kind": kind, "name": self.role},
                "subjects": [{"apiGroup": group, "kind": "User", "name": self.user}]})
        };
        create(&Api::<ClusterRoleBinding>::all(admin.clone()), binding("ClusterRole")).await.unwrap();
        if self.has_namespaced {
            for namespace in NAMESPACES {
                let bindings = Api::<RoleBinding>::namespaced(admin.clone(), namespace);
                create(&bindings, binding("Role")).await.unwrap();
            }
        }
    }

    async fn release(&self, admin: &Client) {
        let bindings = Api::<ClusterRoleBinding>::all(admin.clone());
        delete(&bindings, &self.user, PropagationPolicy::Background).await;
        for namespace in NAMESPACES {
            let bindings = Api::<RoleBinding>::namespaced(admin.clone(), namespace);
            delete(&bindings, &self.user, PropagationPolicy::Background).await;
        }
    }

    /// What `doctor` says to this person.
    fn doctor(&self) -> String {
        let admin = fs::read_to_string(CLUSTER.dir.join("kubeconfig")).unwrap();
        let own =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", self.user, std::process::id()));
        fs::write(
            &own,
            admin.replace("client-key-data:", &format!("as: {}\n      client-key-data:", self.user)),
        )
        .unwrap();
        let doctor =
            Command::new(env!("CARGO_BIN_EXE_kube-node")).args(["doctor", "--kubeconfig"]).arg(&own).output();
        fs::remove_file(&own).unwrap();
        String::from_utf8(doctor.unwrap().stdout).unwrap()
    }

    /// Who this is to the API server, once it knows of the bindings: it learns of them through a watch.
    async fn client(&self) -> Client {
        let client = CLUSTER.client_as(&self.user, &[]).await;
        eventually(&format!("{} is bound", self.user), LONG, async || {
            attempt("read NodeClasses and NodeSets", &client).await.ok()?;
            if self.has_namespaced {
                attempt("read revisions in the operator's namespace", &client).await.ok()?;
                // It needs them all.
                self.doctor().contains(ALL_COMMANDS).then_some(())?;
            }
            Some(())
        })
        .await;
        client
    }
}

/// One try, which changes nothing.
async fn attempt(action: &str, client: &Client) -> kube::Result<()> {
    let (sets, classes) = (Api::<NodeSet>::all(client.clone()), Api::<NodeClass>::all(client.clone()));
    let nodes = Api::<Node>::all(client.clone());
    let secrets = |namespace: &str| Api::<Secret>::namespaced(client.clone(), namespace);
    let (list, dry) = (ListParams::default(), PatchParams { dry_run: true, ..PatchParams::default() });
    let (post, remove) =
        (PostParams { dry_run: true, ..PostParams::default() }, DeleteParams::default().dry_run());
    let replicas = Patch::Merge(json!({"spec": {"replicas": 2}}));
    match action {
        "read NodeClasses and NodeSets" => {
            sets.get(NAME).await?;
            sets.list(&list).await?;
            classes.get(NAME).await?;
            classes.list(&list).await.map(drop)
        }
        "read how a NodeSet stands" => sets.get_status(NAME).await.map(drop),
        "read the scale of a NodeSet" => sets.get_scale(NAME).await.map(drop),
        "scale a NodeSet" => sets.patch_scale(NAME, &dry, &replicas).await.map(drop),
        "change another field of a NodeSet" => {
            sets.patch(NAME, &dry, &Patch::Merge(json!({"spec": {"paused": true}}))).await.map(drop)
        }
        "create a NodeSet" => {
            let spec = json!({"replicas": 0, "nodeClassName": NAME});
            try_create(&sets, &post, json!({"metadata": {"name": "roles-new"}, "spec": spec})).await
        }
        "delete a NodeSet" => sets.delete(NAME, &remove).await.map(drop),
        "create a NodeClass" => {
            try_create(&classes, &post, json!({"metadata": {"name": "roles-new"}, "spec": class_spec()}))
                .await
        }
        "change a NodeClass" => {
            classes.patch(NAME, &dry, &Patch::Merge(json!({"spec": {"machineType": "x"}}))).await.map(drop)
        }
        "delete a NodeClass" => classes.delete(NAME, &remove).await.map(drop),
        "write the status of a NodeSet" => {
            sets.patch_status(NAME, &dry, &Patch::Merge(json!({"status": {"replicas": 9}}))).await.map(drop)
        }
        "read revisions in the operator's namespace" => {
            Api::<ControllerRevision>::namespaced(client.clone(), NAMESPACE).list(&list).await.map(drop)
        }
        "write a ConfigMap in the operator's namespace" => {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
            try_create(&maps, &post, json!({"metadata": {"name": NAME}})).await
        }
        "create a Secret in the operator's namespace" => {
            try_create(&secrets(NAMESPACE), &post, json!({"metadata": {"name": "roles-new"}})).await
        }
        "replace what a Secret in the operator's namespace holds" => {
            let secret = json!({"metadata": {"name": NAME}, "stringData": {"key": "new"}});
            secrets(NAMESPACE).replace(NAME, &post, &serde_json::from_value(secret).unwrap()).await.map(drop)
        }
        "see what a Secret in the operator's namespace holds by a patch" => {
            secrets(NAMESPACE).patch(NAME, &dry, &Patch::Merge(json!({}))).await.map(drop)
        }
        "create a Secret for the operator's token" => {
            let annotations = json!({"kubernetes.io/service-account.name": "kube-node-operator"});
            let metadata = json!({"name": "roles-new", "annotations": annotations});
            let secret = json!({"metadata": metadata, "type": "kubernetes.io/service-account-token"});
            try_create(&secrets(NAMESPACE), &post, secret).await
        }
        "read a Secret in the operator's namespace" => secrets(NAMESPACE).get(NAME).await.map(drop),
        "create a Secret in another namespace" => {
            try_create(&secrets("default"), &post, json!({"metadata": {"name": "roles-new"}})).await
        }
        "read a Node" => nodes.get(NAME).await.map(drop),
        "create a Node" => try_create(&nodes, &post, json!({"metadata": {"name": "roles-new"}})).await,
        "delete a Node" => nodes.delete(NAME, &remove).await.map(drop),
        "read the pod of a machine" => {
            Api::<Pod>::namespaced(client.clone(), "kubemark").list(&list).await.map(drop)
        }
        "create a pod in the namespace of machines" => {
            let spec = json!({"containers": [{"name": "main", "image": "example.com/main:1"}]});
            let pods = Api::<Pod>::namespaced(client.clone(), "kubemark");
            try_create(&pods, &post, json!({"metadata": {"name": NAME}, "spec": spec})).await
        }
        "approve a request for a certificate" => {
            let csrs = Api::<CertificateSigningRequest>::all(client.clone());
            csrs.patch_approval(NAME, &dry, &Patch::Merge(json!({"status": {}}))).await.map(drop)
        }
        "bind itself to a role" => {
            let bindings = Api::<ClusterRoleBinding>::all(client.clone());
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
            try_create(&bindings, &post, json!({"metadata": {"name": "roles-new"}, "roleRef": role})).await
        }
        other => panic!("nobody tries to {other}"),
    }
}

async fn try_create<K>(api: &Api<K>, params: &PostParams, mut object: Value) -> kube::Result<()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let body = serde_json::to_vec(&object).unwrap();
    let request = kube::core::Request::new(api.resource_url()).create(params, body).unwrap();
    api.clone().into_client().request::<Value>(request).await.map(drop)
}

/// The table: whom it speaks of, and each action with what it says of them.
fn table() -> (Vec<Person>, Vec<(String, Vec<bool>)>) {
    let section = DOCS.split("<!-- roles -->").nth(1).expect("a table between two marks");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = section.trim().lines();
    let people = cells(lines.next().unwrap()).iter().skip(1).map(|heading| Person::of(heading)).collect();
    let rows = lines.skip(1).map(|line| {
        let mut cells = cells(line);
        let action = cells.remove(0);
        let yes = |cell: &String| match cell.as_str() {
            "yes" => true,
            "no" => false,
            other => panic!("{action}: {other}"),
        };
        (action.clone(), cells.iter().map(yes).collect())
    });
    (people, rows.collect())
}

#[tokio::test]
async fn people_may_do_what_the_docs_say_and_nothing_more() {
    let own = Fixture::without_set(&CLUSTER, NAME, class_spec()).await;
    own.create_set(0, json!({})).await;
    own.settled(0).await;
    let secrets = Api::<Secret>::namespaced(own.client.clone(), NAMESPACE);
    create(&secrets, json!({"metadata": {"name": NAME}, "stringData": {"key": "old"}})).await.unwrap();
    create(&own.nodes, json!({"metadata": {"name": NAME}})).await.unwrap();
    let (people, rows) = table();
    let actions: BTreeSet<&str> = rows.iter().map(|(action, _)| action.as_str()).collect();
    assert_eq!((people.len(), rows.len(), actions.len()), (7, 26, 26), "nothing is left out, or said twice");

    let mut wrong = Vec::new();
    for (column, person) in people.iter().enumerate() {
        person.bind(&own.client).await;
        let client = person.client().await;
        let doctor = person.doctor();
        assert_eq!(doctor.contains(ALL_COMMANDS), person.has_namespaced, "{doctor}");
        for (action, row) in &rows {
            let tried = attempt(action, &client).await;
            let refused = matches!(&tried, Err(kube::Error::Api(status)) if status.code == 403);
            // Allowed is what was done, not what failed for another reason.
            if tried.is_ok() != row[column] || tried.is_err() != refused {
                wrong.push(format!("{}: {action}: {tried:?}", person.user));
            }
        }
        person.release(&own.client).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    own.nodes.delete(NAME, &DeleteParams::default()).await.unwrap();
    secrets.delete(NAME, &DeleteParams::default()).await.unwrap();
    own.clean_up().await;
}
