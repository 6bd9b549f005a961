//! What a test prints when it waits in vain.

use crate::CLUSTER;
use kube_node_testing::{Fixture, class_spec, logs};

#[tokio::test]
async fn a_failed_wait_reports_the_last_log_lines_and_the_last_objects() {
    let own = Fixture::new(&CLUSTER, "failed-wait", 1, class_spec()).await;
    let node = own.settled(1).await.remove(0);
    let report = logs::report();
    let folder = CLUSTER.dir.display();
    for title in [
        format!("--- {folder}/logs/operator.log"),
        format!("--- nodesets of {folder}"),
        format!("--- nodes of {folder}"),
        format!("--- events of {folder}"),
        format!("{} {{", own.name),
        node.metadata.name.unwrap(),
    ] {
        assert!(report.contains(&title), "{title}: {report}");
    }
    own.clean_up().await;
}
