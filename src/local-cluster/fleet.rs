//! The nodes that `up` creates: NodeClass `hollow` and NodeSet `hollow-nodes`. Waits until all of them are Ready.
//!
//! Objects that exist belong to the user. `up` creates what is absent, writes what a flag asks for, and reports what else
//! differs from a new object.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use kube_ext::call::call;
use kube_node_api::NodeSet;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    kept::kept,
    manifests::{FIELD_MANAGER, Manifest, api, apply_manifest, parse, title},
    modules::KUBERNETES_VERSION,
    progress::Progress,
};

/// Name of the NodeSet that `up` creates.
pub const NODE_SET: &str = "hollow-nodes";
/// Taint that keeps pods with real containers off hollow nodes; pods meant for hollow nodes tolerate it.
const TAINT: &str = "kube-node.io/hollow";
/// Number of nodes of a new cluster when none is given.
const DEFAULT_NODES: i32 = 10;
/// The wait ends when no further node gets Ready for this long. A total limit would cut off large fleets.
const STALL: Duration = Duration::from_secs(90);

/// Nodes that a start asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet<'a> {
    /// Number given by a flag.
    pub nodes: Option<i32>,
    /// Number at the end of the last start.
    pub last_nodes: Option<i32>,
    /// True if a flag asks for a real node. Hollow nodes beside it carry a taint: a pod whose containers must run may
    /// not land on a hollow node.
    pub beside_real_node: bool,
    /// Version of the control plane.
    pub kubernetes: &'a str,
}

/// Writes of one start and its notes for the user.
#[derive(Debug, Default)]
struct Plan {
    created: Vec<Manifest>,
    /// Merge patches.
    changed: Vec<(Manifest, Value)>,
    notes: Vec<String>,
    replicas: i32,
}

impl Fleet<'_> {
    /// Writes what is absent or asked for, and waits until every node is Ready. Returns the number of nodes: the given
    /// one, else the replicas of the existing NodeSet, else that of the last start, else 10.
    pub(super) async fn bring_up(self, client: &Client, progress: &Progress) -> anyhow::Result<i32> {
        let [class, set] = self.objects()?;
        let (class_found, set_found) = tokio::try_join!(read(client, &class), read(client, &set))?;
        let Plan { created, changed, notes, replicas } =
            self.plan(class, class_found.as_ref(), set, set_found.as_ref());
        for note in &notes {
            progress.line(note);
        }
        for manifest in &created {
            apply_manifest(client, manifest).await?;
        }
        for (manifest, change) in &changed {
            let (api, name) = (api(client, manifest), manifest.0.name_any());
            let params =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let action = format_args!("change {}", title(manifest));
            call(action, api.patch(&name, &params, &Patch::Merge(change))).await?;
        }
        progress.step(&format!("Waiting for {}", counted(replicas, "node")));
        wait_ready(Api::all(client.clone()), progress).await?;
        Ok(replicas)
    }

    /// The NodeClass and the NodeSet of a new cluster. With another release than the default one, the nodes' kubelets are of
    /// that release, since a kubelet may not be newer than its API server.
    fn objects(self) -> anyhow::Result<[Manifest; 2]> {
        let objects = parse("fleet.yaml", include_str!("fleet.yaml"))?;
        let [mut class, mut set] =
            <[Manifest; 2]>::try_from(objects).ok().context("fleet.yaml does not hold two objects")?;
        set.0.data["spec"]["replicas"] = json!(self.nodes.or(self.last_nodes).unwrap_or(DEFAULT_NODES));
        if self.beside_real_node {
            class.0.data["spec"]["template"] = json!({"taints": [taint()]});
        }
        if self.kubernetes != KUBERNETES_VERSION {
            let version = format!("v{}", self.kubernetes);
            class.0.data["spec"]["provisioning"] = json!({"kubelet": {"version": version}});
        }
        Ok([class, set])
    }

    /// Decides from the objects that were found. No I/O.
    fn plan(
        self,
        class: Manifest,
        class_found: Option<&Value>,
        set: Manifest,
        set_found: Option<&Value>,
    ) -> Plan {
        let mut plan = Plan::default();
        let class_name = class.0.name_any();
        // A user may have given the set another class; then nobody needs this one.
        let is_of_class = set_found.is_none_or(|found| found["spec"]["nodeClassName"] == class_name);
        match class_found {
            _ if !is_of_class => {}
            None => plan.created.push(class),
            Some(found) => self.plan_class(&mut plan, class, found),
        }
        let replicas = |set: &Value| set["spec"]["replicas"].as_i64().and_then(|n| i32::try_from(n).ok());
        let Some(found) = set_found else {
            plan.replicas = replicas(&set.0.data).unwrap_or_default();
            plan.created.push(set);
            return plan;
        };
        let wanted = json!({"spec": {"nodeClassName": class_name}});
        plan.notes.extend(kept("NodeSet", NODE_SET, found, &wanted));
        let there = replicas(found).unwrap_or_default();
        plan.replicas = self.nodes.unwrap_or(there);
        if plan.replicas != there {
            plan.changed.push((set, json!({"spec": {"replicas": plan.replicas}})));
        }
        plan
    }

    fn plan_class(self, plan: &mut Plan, class: Manifest, found: &Value) {
        let mut wanted = json!({"spec": class.0.data["spec"]});
        // The taint follows the flag, and is no part of the comparison.
        if let Some(spec) = wanted["spec"].as_object_mut() {
            spec.remove("template");
        }
        let name = class.0.name_any();
        plan.notes.extend(kept("NodeClass", &name, found, &wanted));
        let taints = found["spec"]["template"]["taints"].as_array().cloned().unwrap_or_default();
        let position = taints.iter().position(|one| one["key"] == TAINT);
        match (self.beside_real_node, position) {
            (true, None) => {
                let taints: Vec<Value> = taints.into_iter().chain([taint()]).collect();
                let version = &found["metadata"]["resourceVersion"];
                let change = json!({
                    "metadata": {"resourceVersion": version}, "spec": {"template": {"taints": taints}},
                });
                plan.changed.push((class, change));
            }
            (false, Some(at)) => plan.notes.push(format!(
                "NodeClass {name} keeps the taint {TAINT}, which nodes need beside a real node only; to remove the taint: kubectl patch nodeclass {name} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/template/taints/{at}\"}}]'"
            )),
            _ => {}
        }
    }
}

fn taint() -> Value {
    json!({"key": TAINT, "effect": "NoSchedule"})
}

/// The object of this name as it is on the API server.
async fn read(client: &Client, manifest: &Manifest) -> anyhow::Result<Option<Value>> {
    let (api, name) = (api(client, manifest), manifest.0.name_any());
    let found = call(format_args!("read {}", title(manifest)), api.get_opt(&name)).await?;
    Ok(found.map(|object| json!(object)))
}

/// A number of things, such as «1 node» and «2 nodes».
pub fn counted(count: i32, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

async fn wait_ready(sets: Api<NodeSet>, progress: &Progress) -> anyhow::Result<()> {
    let config = watcher::Config::default().fields(&format!("metadata.name={NODE_SET}"));
    let mut changes = watcher(sets, config).default_backoff().applied_objects().boxed();
    let (mut best, mut last, mut deadline) = (0, None::<NodeSet>, Instant::now() + STALL);
    loop {
        let set = match timeout_at(deadline, changes.try_next()).await {
            Err(_) | Ok(Ok(None)) => bail!(stalled(last.as_ref())),
            // The watch retries by itself; a server that stays unreachable counts as a stall.
            Ok(Err(error)) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("cannot watch the NodeSet {NODE_SET}"));
            }
            Ok(Err(_)) => continue,
            Ok(Ok(Some(set))) => set,
        };
        let ready = ready_of(&set);
        if is_ready(&set) {
            return Ok(());
        }
        if ready > best {
            (best, deadline) = (ready, Instant::now() + STALL);
        }
        progress.update(&format!("{ready} of {} nodes are Ready", set.spec.replicas));
        last = Some(set);
    }
}

fn ready_of(set: &NodeSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.ready_replicas)
}

/// Returns true if `readyReplicas` equals `replicas` in a status of the present generation.
fn is_ready(set: &NodeSet) -> bool {
    let Some(status) = &set.status else { return false };
    status.observed_generation >= set.metadata.generation && status.ready_replicas == set.spec.replicas
}

fn stalled(set: Option<&NodeSet>) -> String {
    let describe = |condition: &Condition| {
        let Condition { type_, status, reason, message, .. } = condition;
        format!("{type_}={status} {reason}: {message}")
    };
    let conditions = match set.and_then(|set| set.status.as_ref()) {
        Some(status) => status.conditions.iter().map(describe).collect::<Vec<_>>().join("; "),
        None => "no status: no operator has reconciled it".to_owned(),
    };
    format!(
        "{} of {} nodes are Ready and no further one became so within {} s; NodeSet {NODE_SET}: {conditions}",
        set.map_or(0, ready_of),
        set.map_or(0, |set| set.spec.replicas),
        STALL.as_secs()
    )
}

/// Numbers of Ready and of desired nodes over all NodeSets.
pub async fn count_nodes(client: &Client) -> Result<(i32, i32), kube::Error> {
    let sets = Api::<NodeSet>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(sets.iter().fold((0, 0), |(ready, desired), set| (ready + ready_of(set), desired + set.spec.replicas)))
}

#[cfg(test)]
mod tests {
    use kube_node_api::NodeClass;

    use super::*;

    const FLEET: Fleet<'static> =
        Fleet { nodes: None, last_nodes: None, beside_real_node: false, kubernetes: KUBERNETES_VERSION };

    fn new(fleet: Fleet<'_>) -> (NodeClass, NodeSet) {
        let [class, set] = fleet.objects().unwrap().map(|(object, _)| json!(object));
        (serde_json::from_value(class).unwrap(), serde_json::from_value(set).unwrap())
    }

    /// The plan for a start that finds these objects.
    fn plan(fleet: Fleet<'_>, class: Option<&Value>, set: Option<&Value>) -> Plan {
        let [new_class, new_set] = fleet.objects().unwrap();
        fleet.plan(new_class, class, new_set, set)
    }

    fn created(plan: &Plan) -> Vec<String> {
        plan.created.iter().map(title).collect()
    }

    fn found() -> [Value; 2] {
        let objects = Fleet { nodes: Some(3), ..FLEET }.objects().unwrap();
        objects.map(|(object, _)| {
            let mut object = json!(object);
            object["metadata"]["resourceVersion"] = json!("7");
            object
        })
    }

    fn set(generation: i64, status: &Value) -> NodeSet {
        let mut set = new(Fleet { nodes: Some(3), ..FLEET }).1;
        set.metadata.generation = Some(generation);
        set.status = Some(serde_json::from_value(status.clone()).unwrap());
        set
    }

    #[test]
    fn both_objects_are_of_our_kinds() {
        let (class, set) = new(Fleet { nodes: Some(7), beside_real_node: true, ..FLEET });
        assert_eq!(class.spec.node_controller, "hollow");
        assert_eq!(class.spec.template.unwrap().taints[0].key, TAINT);
        assert_eq!((set.spec.replicas, set.spec.node_class_name.as_str()), (7, "hollow"));
    }

    #[test]
    fn kubelets_are_of_the_release_that_runs() {
        assert!(new(FLEET).0.spec.provisioning.is_none());
        let provisioning = new(Fleet { kubernetes: "1.35.4", ..FLEET }).0.spec.provisioning.unwrap();
        assert_eq!(provisioning.kubelet.unwrap().version, "v1.35.4");
    }

    #[test]
    fn a_start_creates_what_is_absent_with_the_nodes_of_the_last_start() {
        let first = plan(FLEET, None, None);
        assert_eq!(created(&first), ["NodeClass hollow", "NodeSet hollow-nodes"]);
        assert_eq!(first.replicas, DEFAULT_NODES);
        let again = plan(Fleet { last_nodes: Some(0), ..FLEET }, None, None);
        assert_eq!((again.replicas, &again.created[1].0.data["spec"]["replicas"]), (0, &json!(0)));
        let given = plan(Fleet { nodes: Some(4), last_nodes: Some(0), ..FLEET }, None, None);
        assert_eq!(given.replicas, 4);
    }

    #[test]
    fn a_start_reports_an_edited_class_and_leaves_the_class_alone() {
        let [mut class, set] = found();
        let unchanged = plan(FLEET, Some(&class), Some(&set));
        assert!(unchanged.created.is_empty() && unchanged.changed.is_empty() && unchanged.notes.is_empty());
        class["spec"]["capacity"]["cpu"] = json!("64");
        let edited = plan(FLEET, Some(&class), Some(&set));
        assert!(edited.created.is_empty() && edited.changed.is_empty(), "{edited:?}");
        assert_eq!(
            edited.notes,
            [
                r#"NodeClass hollow stays as it is, with spec.capacity.cpu 64 instead of 4; to change it: kubectl patch nodeclass hollow --type=merge -p '{"spec":{"capacity":{"cpu":"4"}}}'"#
            ]
        );
    }

    #[test]
    fn a_start_leaves_a_set_of_another_class_alone_and_creates_no_class_for_the_set() {
        let [_, mut set] = found();
        set["spec"]["nodeClassName"] = json!("mine");
        let plan = plan(FLEET, None, Some(&set));
        assert!(plan.created.is_empty() && plan.changed.is_empty(), "{plan:?}");
        assert!(plan.notes[0].contains("with spec.nodeClassName mine instead of hollow"), "{plan:?}");
    }

    #[test]
    fn flags_of_a_start_are_applied_to_objects_that_exist() {
        let [mut class, set] = found();
        let same = plan(Fleet { last_nodes: Some(9), ..FLEET }, Some(&class), Some(&set));
        assert!(same.changed.is_empty() && same.replicas == 3, "the set has 3: {same:?}");
        let scaled = plan(Fleet { nodes: Some(0), ..FLEET }, Some(&class), Some(&set));
        assert_eq!(scaled.changed[0].1, json!({"spec": {"replicas": 0}}));
        class["spec"]["template"] = json!({"taints": [{"key": "own", "effect": "NoExecute"}]});
        let beside = plan(Fleet { beside_real_node: true, ..FLEET }, Some(&class), Some(&set));
        let taints = json!([{"key": "own", "effect": "NoExecute"}, taint()]);
        assert_eq!(
            beside.changed[0].1,
            json!({"metadata": {"resourceVersion": "7"}, "spec": {"template": {"taints": taints}}})
        );
        class["spec"]["template"]["taints"] = taints;
        let later = plan(FLEET, Some(&class), Some(&set));
        assert!(later.changed.is_empty(), "{later:?}");
        assert!(
            later.notes[0].contains(r#"'[{"op":"remove","path":"/spec/template/taints/1"}]'"#),
            "{later:?}"
        );
    }

    #[test]
    fn a_status_of_an_older_spec_does_not_count() {
        assert!(!is_ready(&set(2, &json!({"observedGeneration": 1, "readyReplicas": 3}))));
        assert!(is_ready(&set(2, &json!({"observedGeneration": 2, "readyReplicas": 3}))));
        assert!(!is_ready(&set(2, &json!({"observedGeneration": 2, "readyReplicas": 2}))));
        assert!(!is_ready(&set(1, &json!({}))), "a status without a generation speaks of none");
    }

    #[test]
    fn a_stall_says_what_the_set_says() {
        let status = json!({"readyReplicas": 1, "conditions": [{
            "type": "Progressing", "status": "True", "reason": "Waiting", "message": "for machines",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]});
        let text = stalled(Some(&set(1, &status)));
        assert!(
            text.starts_with("1 of 3 nodes") && text.contains("Progressing=True Waiting: for machines"),
            "{text}"
        );
        assert!(stalled(None).contains("no operator"));
    }
}
