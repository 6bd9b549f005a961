//! Clusters outside the range of versions: one that is too old is refused before anything is changed, and one that is newer
//! than any that is tested gets a note, by helm and by `setup`.

use std::process::{Command, Output};

use kube_node_controllers::kubernetes_version::{NEWEST, OLDEST};

use crate::{
    lookups::Cluster,
    program::{CHART, said, try_helm},
};

/// Runs `helm install` as a dry run, which reads from the cluster and writes nothing.
fn install(cluster: &Cluster) -> Output {
    let flags = ["--namespace", "kube-node-system", "--dry-run=server", "--disable-openapi-validation"];
    try_helm(&cluster.kubeconfig, &[&["install", "kube-node", CHART][..], &flags].concat())
}

/// Runs `kube-node setup`. The cluster serves no write, so the command ends after the dry run at the latest.
fn setup(cluster: &Cluster, flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    let output = command.arg("setup").args(flags).env("KUBECONFIG", &cluster.kubeconfig).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", said(&output));
    let printed = String::from_utf8(output.stderr).unwrap();
    // The line that names the cluster.
    printed.split_inclusive('\n').filter(|line| !line.starts_with("Cluster: ")).collect()
}

#[test]
fn a_cluster_that_is_too_old_is_refused_before_anything_is_changed() {
    let old = OLDEST - 1;
    let cluster = Cluster::of_version("old", old, &[]);
    let refused = install(&cluster);
    let sentence =
        format!("requires kubeVersion: >=1.{OLDEST}.0-0 which is incompatible with Kubernetes v1.{old}.3");
    assert!(!refused.status.success() && said(&refused).contains(&sentence), "{}", said(&refused));
    for flags in [&["--operator"][..], &[]] {
        let sentence =
            format!("error: the cluster is Kubernetes v1.{old}.3, and kube-node needs 1.{OLDEST} or later");
        let refused = setup(&cluster, flags);
        assert!(refused.starts_with(&sentence), "{flags:?}: {refused}");
    }
    assert_eq!(cluster.writes(), [""; 0]);
}

#[test]
fn a_cluster_that_is_newer_than_any_that_is_tested_gets_a_note() {
    let tested = Cluster::of_version("newest", NEWEST, &[]);
    let newer = Cluster::of_version("newer", NEWEST + 1, &[]);
    let sentence = format!(
        "v1.{}.3 is newer than 1.{NEWEST}, the newest Kubernetes that this kube-node is tested with",
        NEWEST + 1
    );
    for (cluster, is_noted) in [(&newer, true), (&tested, false)] {
        let installed = install(cluster);
        assert!(installed.status.success(), "{}", said(&installed));
        assert_eq!(said(&installed).contains(&format!("\n{sentence}.\n")), is_noted, "{}", said(&installed));
        for flags in [&["--operator"][..], &[]] {
            let printed = setup(cluster, flags);
            let (note, error) = ["note: ", "error: nothing was changed"]
                .map(|begin| printed.lines().position(|line| line.starts_with(begin)))
                .into();
            assert_eq!(
                (note, error),
                if is_noted { (Some(0), Some(1)) } else { (None, Some(0)) },
                "{printed}"
            );
            assert_eq!(printed.starts_with(&format!("note: {sentence}\n")), is_noted, "{printed}");
        }
        assert_eq!(cluster.writes(), [""; 0]);
    }
}
