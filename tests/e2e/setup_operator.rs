//! `setup --operator` and its way back, on a cluster without a kubelet: what is applied, what is refused, what is left.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::{Value, json};

use kube_node_testing::{TemporaryCluster, test_target};

/// Kinds that change by themselves.
const RESTLESS: [&str; 2] = ["Event", "Lease"];
/// Fields that tell a version or a time.
const OF_TIME: [&str; 5] =
    ["resourceVersion", "creationTimestamp", "time", "lastTransitionTime", "lastUpdateTime"];

struct Empty {
    cluster: TemporaryCluster,
}

impl Empty {
    /// A cluster that has never heard of kube-node.
    fn start(name: &str) -> Self {
        let cluster = TemporaryCluster::start(test_target!(), name, &["--without-operator"]);
        let own = Self { cluster };
        own.cluster.kubectl(&["delete", "nodesets,nodeclasses", "--all"]);
        own.says(&["cleanup", "--all"]);
        own
    }

    fn run(&self, args: &[&str], kubeconfig: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .args(args)
            .env("KUBECONFIG", self.cluster.dir.join(kubeconfig))
            .output()
            .unwrap()
    }

    fn says(&self, args: &[&str]) -> String {
        let output = self.run(args, "kubeconfig");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refuses(&self, args: &[&str], kubeconfig: &str) -> String {
        let output = self.run(args, kubeconfig);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        let said = String::from_utf8(output.stderr).unwrap();
        // Commands that write first name the cluster.
        said.find("error: ").map(|start| said[start..].to_owned()).unwrap()
    }

    /// All objects, by kind, namespace and name, without what changes by itself.
    fn objects(&self) -> Vec<(String, Value)> {
        let kinds = self.cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
        let kinds: Vec<&str> = kinds.lines().collect();
        let text = self.cluster.kubectl(&["get", &kinds.join(","), "-A", "-o", "json", "--ignore-not-found"]);
        let all: Value = serde_json::from_str(&text).unwrap();
        let mut objects: Vec<(String, Value)> = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|object| {
                let kind = object["kind"].as_str().unwrap();
                !RESTLESS.contains(&kind) && object["metadata"]["name"] != "kube-root-ca.crt"
            })
            .map(|object| {
                let mut object = object.clone();
                forget_times(&mut object);
                let metadata = &object["metadata"];
                (format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]), object)
            })
            .collect();
        objects.sort_by(|one, other| one.0.cmp(&other.0));
        objects
    }

    /// A kubeconfig of an account that may read everything, and change nothing.
    fn reader(&self) -> &'static str {
        self.cluster.kubectl(&["create", "serviceaccount", "reader"]);
        self.grant(&json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]));
        let grant =
            ["clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader"];
        self.cluster.kubectl(&[&["create"], &grant[..]].concat());
        let token = self.cluster.kubectl(&["create", "token", "reader"]);
        let text = fs::read_to_string(self.cluster.dir.join("kubeconfig")).unwrap();
        let mut config: Value = serde_norway::from_str(&text).unwrap();
        config["users"][0]["user"] = json!({ "token": token.trim() });
        fs::write(self.cluster.dir.join("reader"), config.to_string()).unwrap();
        "reader"
    }

    /// Sets the rights of the reader.
    fn grant(&self, rules: &Value) {
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "reader"},
            "rules": rules,
        }));
    }

    /// Adds rights to those of the reader.
    fn grant_more(&self, groups: &[&str], resources: &[&str], verbs: &[&str]) {
        let role = self.cluster.kubectl(&["get", "clusterrole", "reader", "-o", "json"]);
        let mut rules = serde_json::from_str::<Value>(&role).unwrap()["rules"].clone();
        let more = json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
        rules.as_array_mut().unwrap().push(more);
        self.grant(&rules);
    }

    fn apply(&self, object: &Value) {
        let file = self.cluster.dir.join("object.json");
        fs::write(&file, object.to_string()).unwrap();
        self.cluster.kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()]);
    }
}

/// Removes versions and times at any depth.
fn forget_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|field, _| !OF_TIME.contains(&field.as_str()));
            fields.values_mut().for_each(forget_times);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        _ => {}
    }
}

/// Objects without their status: controllers report what they do about what was installed.
fn without_status(mut objects: Vec<(String, Value)>) -> Vec<(String, Value)> {
    for (_, object) in &mut objects {
        object["status"] = Value::Null;
    }
    objects
}

fn names(objects: &[(String, Value)]) -> Vec<&str> {
    objects.iter().map(|(name, _)| name.as_str()).collect()
}

/// Fails with the first object that differs.
fn assert_same(before: &[(String, Value)], after: &[(String, Value)]) {
    assert_eq!(names(after), names(before));
    for ((name, before), (_, after)) in before.iter().zip(after) {
        assert_eq!(after, before, "{name}");
    }
}

#[test]
fn from_an_empty_cluster_and_back() {
    let own = Empty::start("setup-operator");
    let reader = own.reader();
    own.cluster.kubectl(&["create", "namespace", "kubemark"]);
    let before = own.objects();
    let is_ours = |name: &&str| name.contains("kube-node") && !name.contains("kube-node-lease");
    assert_eq!(names(&before).into_iter().find(is_ours), None, "the cluster has never heard of kube-node");

    for args in [&["setup", "--operator"][..], &["setup"]] {
        let refusal = own.refuses(args, reader);
        let wanted = "error: nothing was changed, since CustomResourceDefinition nodeclasses.kube-node.io would be refused: ";
        assert!(refusal.starts_with(wanted) && refusal.contains("default:reader"), "{refusal}");
    }
    assert_same(&before, &own.objects());

    let said = own.says(&["setup", "--operator", "--no-wait"]);
    assert!(said.starts_with("Installed: the operator in namespace kube-node-system"), "{said}");
    let installed = without_status(own.objects());
    let image = "localhost/kube-node:";
    let deployment = own.cluster.kubectl(&["-n", "kube-node-system", "get", "deployment", "-o", "json"]);
    assert_eq!(deployment.matches(image).count(), 2, "operator and machines: {deployment}");
    own.says(&["setup", "--operator", "--no-wait"]);
    assert_same(&installed, &without_status(own.objects()));

    // Nobody runs the pods here.
    let refusal = own.refuses(&["setup", "--operator", "--timeout", "2s"], "kubeconfig");
    assert!(refusal.contains("after 2 s the operator is not ready"), "{refusal}");
    let said = own.says(&["create", "1", "--no-wait"]);
    assert!(said.contains("\nNo operator serves NodeController hollow: "), "{said}");
    let refusal = own.refuses(&["cleanup", "--operator"], "kubeconfig");
    assert!(refusal.contains("delete NodeSet hollow-nodes, NodeClass hollow-nodes first"), "{refusal}");
    let set = r#"{"apiVersion": "kube-node.io/v1alpha1", "kind": "NodeSet", "metadata": {"name": "theirs"}, "spec": {"nodeClassName": "hollow-nodes", "replicas": 0}}"#;
    let file = own.cluster.dir.join("set.json");
    fs::write(&file, set).unwrap();
    own.cluster.kubectl(&["create", "-f", file.to_str().unwrap()]);
    let said = own.says(&["cleanup"]);
    assert!(said.contains("NodeClass hollow-nodes stays: it is the class of NodeSet theirs."), "{said}");
    own.cluster.kubectl(&["delete", "-f", file.to_str().unwrap()]);
    own.says(&["cleanup"]);

    let role = ["annotate", "clusterrole", "kube-node-operator"];
    let release = ["meta.helm.sh/release-name=theirs", "meta.helm.sh/release-namespace=nodes"];
    own.cluster.kubectl(&[&role[..], &release].concat());
    for args in [&["setup"][..], &["setup", "--operator"], &["cleanup", "--operator"]] {
        let refusal = own.refuses(args, "kubeconfig");
        assert!(
            refusal.contains("the release theirs of helm in namespace nodes is kube-node already"),
            "{refusal}"
        );
    }
    own.cluster.kubectl(&[&role[..], &["meta.helm.sh/release-name-"]].concat());

    let place = ["-n", "kube-node-system"];
    let label =
        ["label", "--overwrite", "deployment", "kube-node-operator", "app.kubernetes.io/version=0.0.1"];
    let label_old = [&place[..], &label].concat();
    let images = || {
        let deployment = own.cluster.kubectl(&[&place[..], &["get", "deployment", "-o", "json"]].concat());
        deployment.matches("\"example.com/kube-node:2\"").count()
            + deployment.matches("=example.com/kube-node:2\"").count()
    };
    own.cluster.kubectl(&label_old);
    let said = own.says(&["setup"]);
    assert!(said.starts_with("The operator of version 0.0.1 stays, and gets the kinds, "), "{said}");
    let said = own.says(&["setup", "--operator", "--no-wait", "--image", "example.com/kube-node:2"]);
    assert!(said.starts_with("The operator of version 0.0.1 becomes "), "{said}");
    let version = || {
        own.cluster.kubectl(
            &[&place[..], &["get", "deployment", "-o", "jsonpath={.items[*].metadata.labels}"]].concat(),
        )
    };
    assert!(version().contains(env!("CARGO_PKG_VERSION")), "{}", version());
    // An image that was chosen stays, until a version comes whose image nobody has named.
    own.says(&["setup", "--operator", "--no-wait"]);
    assert_eq!(images(), 2);
    own.cluster.kubectl(&label_old);
    let refusal = own.refuses(&["setup", "--operator", "--no-wait"], "kubeconfig");
    let wanted = "the operator of version 0.0.1 runs example.com/kube-node:2: name the image of ";
    assert!(refusal.contains(wanted), "{refusal}");

    let said = own.says(&["cleanup", "--operator"]);
    let stays = "Namespace kubemark stays: setup did not create it.\nAll that setup installed is gone.\n";
    assert!(said.ends_with(stays), "{said}");
    assert_same(&before, &own.objects());
}

#[test]
fn rights_that_are_missing_are_found_before_anything_is_changed() {
    let own = Empty::start("setup-rights");
    let reader = own.reader();
    own.says(&["setup", "--operator", "--no-wait"]);
    let installed = without_status(own.objects());

    let kinds = &["kube-node.io"];
    let refusal = own.refuses(&["create", "1", "--no-wait"], reader);
    assert!(
        refusal.starts_with("error: nothing was changed: cannot apply NodeClass hollow-nodes: "),
        "{refusal}"
    );
    own.grant_more(kinds, &["nodeclasses"], &["create", "patch"]);
    let refusal = own.refuses(&["create", "1", "--no-wait"], reader);
    assert!(
        refusal.starts_with("error: nothing was changed: cannot apply NodeSet hollow-nodes: "),
        "{refusal}"
    );

    let deletion = |object: &str| {
        format!("error: nothing was deleted, since the deletion of {object} would be refused: ")
    };
    let crd = "CustomResourceDefinition nodeclasses.kube-node.io";
    let refusal = own.refuses(&["cleanup", "--operator"], reader);
    assert!(refusal.starts_with(&deletion(crd)) && refusal.contains("default:reader"), "{refusal}");
    own.grant_more(&["apiextensions.k8s.io", "apps"], &["*"], &["delete"]);
    let refusal = own.refuses(&["cleanup", "--operator"], reader);
    assert!(refusal.starts_with(&deletion("Service kube-node-operator")), "{refusal}");
    let strip = |objects: Vec<(String, Value)>| -> Vec<(String, Value)> {
        objects.into_iter().filter(|(name, _)| !name.contains("\"reader\"")).collect()
    };
    assert_eq!(strip(without_status(own.objects())), strip(installed), "nothing was changed");

    // The NodeSet of the user stays as well.
    own.says(&["create", "0", "--no-wait"]);
    let refusal = own.refuses(&["cleanup", "--all"], reader);
    assert!(refusal.starts_with(&deletion("Service kube-node-operator")), "{refusal}");
    own.cluster.kubectl(&["get", "nodeset", "hollow-nodes"]);
}

#[test]
fn the_right_for_the_last_object_is_tried_out_first() {
    let own = Empty::start("setup-last-right");
    let reader = own.reader();
    let groups = own.cluster.kubectl(&["api-versions"]);
    let mut groups: Vec<&str> =
        groups.lines().map(|version| version.rsplit_once('/').map_or("", |(group, _)| group)).collect();
    groups.retain(|group| *group != "apps");
    let rules = json!([
        {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]},
        // Who binds a policy that is not there yet has to have the right to read anything (kube-apiserver, `paramRef`).
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
    ]);
    own.grant(&rules);
    let before = own.objects();
    let refusal = own.refuses(&["setup", "--operator"], reader);
    // Its namespace is not there yet.
    let wanted = "error: nothing was changed, since Deployment kube-node-operator would be refused: ";
    assert!(refusal.starts_with(wanted) && refusal.contains("default:reader"), "{refusal}");
    assert_same(&before, &own.objects());
}

#[test]
fn what_is_printed_can_be_applied() {
    let own = Empty::start("install-yaml");
    let yaml =
        own.says(&["setup", "--operator", "--image", "example.com/a:1", "--dry-run=client", "-o", "yaml"]);
    let file = own.cluster.dir.join("install.yaml");
    fs::write(&file, &yaml).unwrap();
    own.cluster.kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()]);
    let deployment = own.cluster.kubectl(&["-n", "kube-node-system", "get", "deployment", "-o", "json"]);
    assert!(
        deployment.contains("example.com/a:1") && !deployment.contains("localhost/kube-node"),
        "{deployment}"
    );
    let listed = own.says(&["setup", "--operator", "--dry-run=client"]);
    assert!(listed.contains("deployment/kube-node-operator (dry run)\n"), "{listed}");
    assert_eq!(listed.lines().count(), yaml.lines().filter(|line| *line == "---").count());
    // The API server serves definitions only a moment after it has got them.
    let is_served = |_| own.cluster.try_kubectl(&["get", "nodesets,nodeclasses"]).status.success();
    assert!((0..100).any(is_served));
    // Nobody knows whether the namespaces were there before.
    let said = own.says(&["cleanup", "--operator"]);
    for namespace in ["kube-node-system", "kubemark"] {
        assert!(said.contains(&format!("Namespace {namespace} stays: setup did not create it.\n")), "{said}");
    }
}
