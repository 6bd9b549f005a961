//! The commands that `kubemark-cluster` had, with kubemark machines.

use crate::CLUSTER;
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use local_cluster::images;
use serde_json::Value;

fn run(args: &[&str], version: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    command.args(args).env("KUBECONFIG", CLUSTER.dir.join("kubeconfig")).env_remove("KUBEMARK_VERSION");
    command.envs(version.map(|version| ("KUBEMARK_VERSION", version))).output().unwrap()
}

fn output(args: &[&str], version: Option<&str>) -> String {
    let output = run(args, version);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Name and image of the hollow kubelet of each pod that there is of the fleet.
async fn pods() -> Vec<(String, String)> {
    let pods: Api<Pod> = Api::namespaced(CLUSTER.client().await, "kubemark");
    let of_fleet = ListParams::default().labels("name=hollow-node");
    let listed = pods.list(&of_fleet).await.unwrap().items.into_iter();
    listed
        .map(|pod| {
            let image = pod.spec.unwrap().containers[0].image.clone().unwrap();
            (pod.metadata.name.unwrap(), image)
        })
        .filter(|(name, _)| name.starts_with("hollow-nodes-"))
        .collect()
}

pub async fn from_create_to_cleanup() {
    let _node = crate::NODE.read().await;
    let upstream = images::KUBEMARK.rsplit_once(':').unwrap();
    for version in [None, Some(upstream.1)] {
        // A version and an image ask for kubemark by themselves.
        let kind =
            if version.is_some() { ["--image", upstream.0] } else { ["--node-controller", "kubemark"] };
        // `up` has made a set of this name, without nodes.
        output(&["cleanup"], None);
        assert!(output(&["setup"], version).contains("An operator runs."));
        let said = output(&[&["create", "2"], &kind[..]].concat(), version);
        assert!(said.starts_with("NodeSet hollow-nodes: 2 nodes of NodeController kubemark"), "{said}");
        // The real node is there, too.
        assert!(said.contains(", with the taint kube-node.io/hollow:NoSchedule\n"), "{said}");
        assert!(said.ends_with("2 of 2 nodes are Ready\n"), "{said}");
        let wanted = if version.is_some() { images::KUBEMARK } else { images::KUBE_NODE };
        let there = pods().await;
        assert_eq!(there.len(), 2, "{there:?}");
        assert!(there.iter().all(|(_, image)| image == wanted), "{there:?}");
        assert_eq!(output(&["verify", "hollow-nodes"], None), "2 of 2 nodes are Ready\n");
        assert!(output(&["scale", "3"], None).ends_with("3 of 3 nodes are Ready\n"));
        let list: Value =
            serde_json::from_str(&output(&["list", "hollow-nodes", "-o", "json"], None)).unwrap();
        assert_eq!((&list["ready"], &list["wanted"]), (&3.into(), &3.into()));
        assert!(output(&["list", "-o", "wide"], None).contains(upstream.1));
        assert!(output(&["scale", "1"], None).ends_with("1 of 1 nodes are Ready\n"));
        // Other sets of this cluster may be in trouble on purpose: what the fleet's pod is looked at for.
        let said = String::from_utf8(run(&["doctor"], None).stdout).unwrap();
        let line = |topic: &str| {
            let is_it = |line: &&str| line.get(5..).is_some_and(|rest| rest.starts_with(topic));
            said.lines().find(is_it).unwrap_or_default().to_owned()
        };
        for topic in ["API server", "kinds", "setup", "rights", "operator"] {
            assert!(line(topic).starts_with("ok "), "{said}");
        }
        assert!(!said.contains("hollow-nodes"), "nothing is wrong with these: {said}");
        output(&["cleanup"], None);
        assert_eq!(pods().await, Vec::<(String, String)>::new());
    }
}
