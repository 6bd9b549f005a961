//! The five systems, each with one node of one cluster.

use std::{process::Child, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_node_planner::node_builder;
use local_cluster::images;
use serde_json::{Value, json};

use super::{
    CLUSTER, SLOT, TAINT,
    kwok::{self, Kwok},
};
use kube_node_testing::{Fixture, create, eventually, is_ready, name};

/// Until a node is Ready, beside four others.
const UP: Duration = Duration::from_mins(3);

/// Who plays a kubelet. The first is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    Kubelet,
    Hollow,
    /// With the stages that kwokctl gives it.
    Kwok,
    /// With stages of pods that have more steps.
    KwokGeneral,
    Kubemark,
}

impl System {
    /// Those that are compared with the real one, ours first.
    pub const OTHERS: [Self; 4] = [Self::Hollow, Self::Kwok, Self::KwokGeneral, Self::Kubemark];

    /// In the names of objects.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Hollow => "hollow",
            Self::Kwok => "kwok",
            Self::KwokGeneral => "kwok-general",
            Self::Kubemark => "kubemark",
        }
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct Target {
    pub system: System,
    pub node: String,
}

/// All nodes, and what runs for them alone.
pub struct Nodes {
    pub places: Vec<Target>,
    kwok: Vec<KwokProcess>,
}

/// A process of KWOK, with the annotation of its Nodes and the stages of their pods.
struct KwokProcess {
    process: Child,
    own: (&'static str, &'static str),
    stages: &'static str,
}

impl KwokProcess {
    fn start(kwok: &Kwok, own: (&'static str, &'static str), stages: &'static str) -> Self {
        let process = kwok.start(&CLUSTER.dir.join("kubeconfig"), own, stages).expect("KWOK runs");
        Self { process, own, stages }
    }
}

impl Drop for KwokProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Nodes {
    /// Starts them; each has one [`SLOT`], and a taint that keeps pods away that do not tolerate it.
    pub async fn start(client: &Client, kwok: &Kwok) -> Self {
        let capacity =
            json!({"cpu": "2", "memory": "8Gi", "ephemeral-storage": "50Gi", "pods": "110", SLOT: "1"});
        // Its machine is a pod that is to run for real, and the other nodes would take it as well.
        let kubemark = json!({
            "image": images::KUBEMARK,
            "nodeSelector": {"kubernetes.io/hostname": "real-node"},
            // A kubelet that starts again refuses its pods that do not tolerate the taint.
            "tolerations": [{"operator": "Exists"}],
        });
        let sets = [
            (System::Hollow, json!({"nodeController": "hollow", "capacity": capacity})),
            (
                System::Kubemark,
                json!({"nodeController": "kubemark", "kubemark": kubemark, "capacity": capacity}),
            ),
        ];
        let mut places = vec![Target { system: System::Kubelet, node: "real-node".to_owned() }];
        let nodes: Api<Node> = Api::all(client.clone());
        let mut processes = Vec::new();
        for (system, own, stages) in [
            (System::Kwok, kwok::OWN, kwok::FAST_PODS),
            (System::KwokGeneral, (kwok::OWN.0, "general"), "pod/general"),
        ] {
            let fake = format!("{}-node", system.name());
            let status = json!({"capacity": capacity, "allocatable": capacity});
            let metadata = json!({
                "name": fake,
                "labels": node_builder::well_known_labels(&fake, None),
                "annotations": {own.0: own.1},
            });
            create(&nodes, json!({"metadata": metadata, "status": status})).await.unwrap();
            processes.push(KwokProcess::start(kwok, own, stages));
            places.push(Target { system, node: fake });
        }
        let mut owned = Vec::new();
        for (system, class) in sets {
            owned.push((
                system,
                Fixture::new(&CLUSTER, &format!("compare-{}", system.name()), 1, class).await,
            ));
        }
        for (system, own) in owned {
            let node = eventually(&format!("a Ready node of {system:?}"), UP, async || {
                own.my_nodes().await.into_iter().find(is_ready)
            })
            .await;
            places.push(Target { system, node: name(&node) });
        }
        places.sort_by_key(|target| target.system);
        let slot = Patch::Merge(json!({"status": {"capacity": {SLOT: "1"}}}));
        nodes.patch_status("real-node", &PatchParams::default(), &slot).await.unwrap();
        for target in &places {
            prepare(&nodes, &target.node).await;
        }
        Self { places, kwok: processes }
    }

    /// Kills each process of KWOK and starts another.
    pub fn restart_kwok(&mut self, kwok: &Kwok) {
        let old = std::mem::take(&mut self.kwok);
        self.kwok = old
            .into_iter()
            .map(|ended| (ended.own, ended.stages))
            .map(|(own, stages)| KwokProcess::start(kwok, own, stages))
            .collect();
    }
}

/// Waits until a node is Ready and shows its slot, and taints it.
async fn prepare(nodes: &Api<Node>, node: &str) {
    eventually(&format!("{node} is Ready, with a slot"), UP, async || {
        let node = nodes.get(node).await.unwrap();
        let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
        let is_open = !kube_node_testing::taints(&node).iter().any(|(key, _)| key.contains("not-ready"));
        (is_ready(&node) && is_open && allocatable.contains_key(SLOT)).then_some(())
    })
    .await;
    let taints: Value = json!([{"key": TAINT, "effect": "NoExecute"}]);
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}
