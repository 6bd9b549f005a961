//! What the tools of `GitOps` make of sets and classes, by kstatus itself and by the checks of docs/gitops.md.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use kube_node_testing::{Fixture, class_spec, go_program::GoProgram};
use serde_json::{Value, json};

use crate::CLUSTER;

const KSTATUS: GoProgram =
    GoProgram { name: "kstatus", folder: "tests/kstatus", module: "sigs.k8s.io/cli-utils", package: "." };

/// docs/gitops.md.
struct Page(String);

impl Page {
    fn read() -> Self {
        Self(fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gitops.md")).unwrap())
    }

    /// The first object in YAML that has this field.
    fn yaml(&self, field: &str) -> Value {
        let blocks = self.0.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let mut values = blocks.map(|text| serde_norway::from_str::<Value>(text).unwrap());
        values.find(|value| !value.pointer(field).unwrap_or(&Value::Null).is_null()).unwrap()
    }

    /// The script for Argo CD.
    fn lua(&self) -> String {
        let settings = self.yaml("/data")["data"]["resource.customizations"].as_str().unwrap().to_owned();
        let settings: Value = serde_norway::from_str(&settings).unwrap();
        settings["kube-node.io/*"]["health.lua"].as_str().unwrap().to_owned()
    }

    /// Flux's expressions for a failure, and for the end.
    fn expressions(&self) -> [String; 2] {
        let all = self.yaml("/spec/healthCheckExprs/0")["spec"]["healthCheckExprs"][0].clone();
        ["failed", "current"].map(|field| all[field].as_str().unwrap().to_owned())
    }

    /// What the table says of a state: kstatus's word and Argo CD's.
    fn row(&self, state: &str) -> [String; 2] {
        let is_it = |line: &&str| line.starts_with(&format!("| {state}"));
        let row = self.0.lines().find(is_it).unwrap_or_else(|| panic!("no row for «{state}»"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        [cells[4].to_owned(), cells[5].to_owned()]
    }

    /// The words of kstatus, Flux and Argo CD for objects.
    fn words(&self, objects: &[Value]) -> Vec<[String; 3]> {
        let check = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{}.lua", std::process::id()));
        fs::write(&check, self.lua()).unwrap();
        let mut child = Command::new(KSTATUS.path().expect("kstatus is built"))
            .arg(&check)
            .args(self.expressions())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        for object in objects {
            writeln!(input, "{object}").unwrap();
        }
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        fs::remove_file(check).unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let of_line = |line: &str| -> [String; 3] {
            line.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
        };
        said.lines().map(of_line).collect()
    }
}

fn object(kind: &str, name: &str) -> Value {
    serde_json::from_str(&CLUSTER.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

#[tokio::test]
async fn tools_know_when_a_set_is_done_by_the_table_of_the_page() {
    // Another class, whose Nodes are never available.
    let waits = json!({"spec": {"capacity": {"cpu": "8"},
        "template": {"startupTaints": [{"key": "example.com/agent", "effect": "NoSchedule"}]}}});
    let own = Fixture::new(&CLUSTER, "gitops", 1, class_spec()).await;
    let without_class = Fixture::nothing(&CLUSTER, "gitops-no-class").await;
    without_class.create_set(1, json!({})).await;
    let halts = Fixture::without_set(&CLUSTER, "gitops-halts", class_spec()).await;
    halts.create_set(1, json!({"progressDeadline": "5s"})).await;
    own.settled(1).await;
    own.set_says("Ready", "True", "Complete").await;
    halts.settled(1).await;
    let complete = object("nodeset", &own.name);
    CLUSTER.kubectl(&["wait", "--for=condition=Ready", &format!("nodeclass/{}", own.name), "--timeout=60s"]);
    let class = object("nodeclass", &own.name);
    own.patch_set(json!({"spec": {"paused": true}})).await;
    own.patch_class(waits.clone()).await;
    halts.patch_class(waits).await;
    own.set_says("Ready", "False", "Paused").await;
    let paused = object("nodeset", &own.name);
    own.patch_set(json!({"spec": {"paused": null}})).await;
    own.set_says("Ready", "False", "RollingOut").await;
    let rolling = object("nodeset", &own.name);
    without_class.set_says("Ready", "False", "ClassNotFound").await;
    halts.set_says("Ready", "False", "ProgressDeadlineExceeded").await;
    let mut new = complete.clone();
    new.as_object_mut().unwrap().remove("status");
    let with = |field: &str, value: Value| {
        let mut object = complete.clone();
        object["metadata"][field] = value;
        object
    };
    let unseen = complete["metadata"]["generation"].as_i64().unwrap() + 1;
    let in_progress = "InProgress";
    let rows = [
        ("no operator has seen the object", new, in_progress),
        ("no operator has seen the last change", with("generation", json!(unseen)), in_progress),
        ("nodes are created, replaced or deleted", rolling, in_progress),
        ("all nodes are as the spec says", complete.clone(), "Current"),
        ("an obstacle", object("nodeset", &without_class.name), in_progress),
        ("a rollout has halted itself", object("nodeset", &halts.name), "Failed"),
        ("a rollout is paused", paused, in_progress),
    ];
    let page = Page::read();
    let objects: Vec<Value> = rows.iter().map(|(_, object, _)| object.clone()).collect();
    for ((state, object, of_flux), [kstatus, flux, argo]) in rows.iter().zip(page.words(&objects)) {
        let [of_kstatus, of_argo] = page.row(state);
        assert_eq!([&*kstatus, &*flux, &*argo], [&*of_kstatus, of_flux, &*of_argo], "{state}: {object}");
    }
    let more = page.words(&[with("deletionTimestamp", json!("2026-01-01T00:00:00Z")), class]);
    assert_eq!(more[0][0], page.row("the set is being deleted")[0]);
    assert_eq!([&*more[1][0], &*more[1][2]], ["Current", "Healthy"]);
    for fixture in [own, without_class, halts] {
        fixture.clean_up().await;
    }
}
