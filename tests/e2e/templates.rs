//! Templates reach living Nodes in place.

use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually, name};

#[tokio::test]
async fn a_change_of_the_template_replaces_nobody() {
    let mut class = class_spec();
    class["template"] = json!({"labels": {"zone": "a", "tier": "gold"}, "annotations": {"note": "one"}});
    let own = Fixture::new(&CLUSTER, "template", 3, class).await;
    let before: Vec<_> = own.settled(3).await.iter().map(|node| node.metadata.uid.clone()).collect();
    let first = name(&own.my_nodes().await[0]);
    CLUSTER.kubectl(&["label", "node", &first, "mine=yes"]);
    own.patch_class(
        json!({"spec": {"template": {"labels": {"zone": "b", "tier": null}, "annotations": {"note": null}}}}),
    )
    .await;
    own.patch_set(json!({"spec": {"template": {"labels": {"team": "search"}}}})).await;
    eventually("all Nodes carry it", LONG, async || {
        own.my_nodes()
            .await
            .iter()
            .all(|node| {
                let labels = node.metadata.labels.as_ref().unwrap();
                let annotations = node.metadata.annotations.as_ref().unwrap();
                labels.get("zone").is_some_and(|zone| zone == "b")
                    && labels.get("team").is_some_and(|team| team == "search")
                    && !labels.contains_key("tier")
                    && !annotations.contains_key("note")
            })
            .then_some(())
    })
    .await;
    let node = own.nodes.get(&first).await.unwrap();
    assert_eq!(node.metadata.labels.unwrap()["mine"], "yes");
    // Somebody takes a label of the template away: it comes back.
    CLUSTER.kubectl(&["label", "node", &first, "team-"]);
    eventually("the label comes back", LONG, async || {
        own.nodes.get(&first).await.unwrap().metadata.labels?.contains_key("team").then_some(())
    })
    .await;
    let mut after: Vec<_> = own.settled(3).await.iter().map(|node| node.metadata.uid.clone()).collect();
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(before, after);
    own.clean_up().await;
}
