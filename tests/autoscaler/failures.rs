//! Machines that do not come: cluster-autoscaler is told why, where it may take them back.

use std::time::Duration;

use kube_node::autoscaler::proto::instance_status::InstanceState;
use serde_json::json;

use crate::{bed::eventually, caller, caller::fake, caller::state, group, replicas};

pub async fn a_machine_without_room() {
    // A machine that is a pod, and no node takes pods.
    let class =
        json!({"nodeController": "kubemark", "capacity": {"cpu": "4", "memory": "8Gi", "pods": "30"}});
    let own = group("as-no-room", 1, 1, 5, class).await;
    let mut caller = caller().await;
    caller.increase("as-no-room", 1).await.unwrap();
    let failed = eventually("one failure is told", Duration::from_mins(2), async || {
        let instances = caller.nodes("as-no-room").await.unwrap();
        assert!(
            instances.iter().all(|instance| state(instance) == InstanceState::InstanceCreating),
            "{instances:?}"
        );
        let errors =
            instances.into_iter().filter_map(|instance| Some((instance.id, instance.status?.error_info?)));
        let errors: Vec<_> = errors.collect();
        assert!(errors.len() < 2, "one is the minimum, and is not to be taken: {errors:?}");
        errors.into_iter().next()
    })
    .await;
    let (id, error) = failed;
    assert_eq!((error.error_code.as_str(), error.instance_error_class), ("Unschedulable", 1));
    assert!(error.error_message.contains("no node takes its pod"), "{error:?}");
    // As cluster-autoscaler does it at every loop: it has not seen such a Node work.
    caller.delete("as-no-room", vec![fake(&id)]).await.unwrap();
    assert_eq!(replicas(&own).await, 1);
    eventually("it is gone", Duration::from_mins(1), async || {
        let instances = caller.nodes("as-no-room").await.unwrap();
        (instances.len() == 1 && instances[0].id != id).then_some(())
    })
    .await;
    let left = caller.nodes("as-no-room").await.unwrap();
    assert!(left[0].status.as_ref().unwrap().error_info.is_none(), "{left:?}");
    own.clean_up().await;
}
