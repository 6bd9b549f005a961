//! The operator's lines name the object and the look that they are of.

use std::collections::BTreeSet;

use serde_json::Value;

use super::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually};

/// The lines of looks at an object.
fn lines(controller: &str, object: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(CLUSTER.dir.join("logs/operator.log")).unwrap();
    // The last line may not be written to its end.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line["span"]["controller"] == controller && line["span"]["object"] == object)
        .collect()
}

#[tokio::test]
async fn a_line_says_which_look_it_is_of() {
    let own = Fixture::new(&CLUSTER, "observability-logs", 2, class_spec()).await;
    own.settled(2).await;
    let restart = CLUSTER.kube_node(&["rollout", "restart", "nodeset/observability-logs"]);
    assert!(restart.status.success(), "{}", String::from_utf8_lossy(&restart.stderr));
    // One after the other, so by two looks at least.
    let replaced = eventually("two nodes were replaced", LONG, async || {
        let lines: Vec<Value> = lines("nodeset", "observability-logs")
            .into_iter()
            .filter(|line| line["message"] == "replaced")
            .collect();
        (lines.len() >= 2).then_some(lines)
    })
    .await;
    let mut ids = BTreeSet::new();
    for line in &replaced {
        let id = line["span"]["id"].as_str().unwrap();
        assert!(id.len() == 16 && id.chars().all(|c| c.is_ascii_hexdigit()), "{line}");
        assert_eq!(line["span"]["name"], "reconcile", "{line}");
        ids.insert(id.to_owned());
    }
    assert!(ids.len() >= 2, "{ids:?}");
    own.clean_up().await;
}
