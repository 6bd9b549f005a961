//! Protobuf types of a pod's spec, for the fields that are read. k8s-pb's types would decode all fields, and
//! refuse a pod with a string that is not UTF-8: see docs/decisions/0050-pods-are-decoded-by-types-of-our-own.md.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use prost::Message;
use serde::Deserialize;

use super::{
    Container, ContainerResources, NodeSelectorRequirement, NodeSelectorTerm, PodSpecView, Probe, Reference,
    ResourceList, RestartPolicy, TOKEN_VOLUME, Toleration, VolumeMount, intern,
    interner::Interner,
    pod_references::{self, ProtobufVariable, VariablesFrom, Volume},
    protobuf::{Amount, messages},
};

/// Interned specs of all pods in this process.
static SPECS: LazyLock<Interner<PodSpecView>> = LazyLock::new(Interner::default);
/// Default of `terminationGracePeriodSeconds`.
const GRACE_SECONDS: i64 = 30;

messages! {
    /// core/v1 `PodSpec`.
    pub(super) struct ProtobufSpec {
        pub(super) volumes: Vec<Volume> = 1 (message, repeated);
        containers: Vec<ProtobufContainer> = 2 (message, repeated);
        restart_policy: String = 3 (string);
        termination_grace_period_seconds: Option<i64> = 4 (int64, optional);
        active_deadline_seconds: Option<i64> = 5 (int64, optional);
        node_selector: BTreeMap<String, String> = 7 (btree_map = "string, string");
        pub(super) node_name: String = 10 (string);
        host_network: bool = 11 (bool);
        affinity: Option<Affinity> = 18 (message, optional);
        init_containers: Vec<ProtobufContainer> = 20 (message, repeated);
        tolerations: Vec<Toleration> = 22 (message, repeated);
        pub(super) priority: i32 = 25 (int32);
        readiness_gates: Vec<ReadinessGate> = 28 (message, repeated);
        overhead: BTreeMap<String, Amount> = 32 (btree_map = "string, message");
        os: Option<Os> = 36 (message, optional);
        resources: Option<ProtobufResources> = 40 (message, optional);
    }

    struct ProtobufContainer {
        name: String = 1 (string);
        image: String = 2 (string);
        env: Vec<ProtobufVariable> = 7 (message, repeated);
        resources: Option<ProtobufResources> = 8 (message, optional);
        volume_mounts: Vec<VolumeMount> = 9 (message, repeated);
        readiness_probe: Option<Probe> = 11 (message, optional);
        lifecycle: Option<Lifecycle> = 12 (message, optional);
        env_from: Vec<VariablesFrom> = 19 (message, repeated);
        volume_devices: Vec<VolumeDevice> = 21 (message, repeated);
        startup_probe: Option<Probe> = 22 (message, optional);
        restart_policy: String = 24 (string);
    }

    struct VolumeDevice {
        name: String = 1 (string);
    }

    struct ProtobufResources {
        limits: BTreeMap<String, Amount> = 1 (btree_map = "string, message");
        requests: BTreeMap<String, Amount> = 2 (btree_map = "string, message");
    }

    struct Lifecycle {
        pre_stop: Option<Hook> = 2 (message, optional);
    }

    struct Hook {
        sleep: Option<Sleep> = 4 (message, optional);
    }

    struct Sleep {
        seconds: i64 = 1 (int64);
    }

    struct ReadinessGate {
        condition_type: String = 1 (string);
    }

    struct Os {
        name: String = 1 (string);
    }

    struct Affinity {
        node_affinity: Option<NodeAffinity> = 1 (message, optional);
    }

    struct NodeAffinity {
        required_during_scheduling_ignored_during_execution: Option<Terms> = 1 (message, optional);
    }

    struct Terms {
        node_selector_terms: Vec<ProtobufTerm> = 1 (message, repeated);
    }

    struct ProtobufTerm {
        match_expressions: Vec<NodeSelectorRequirement> = 1 (message, repeated);
        match_fields: Vec<NodeSelectorRequirement> = 2 (message, repeated);
    }
}

impl ProtobufSpec {
    /// Objects without which the pod cannot start.
    pub(super) fn references(&self) -> Arc<[Reference]> {
        let containers = self.init_containers.iter().chain(&self.containers).map(|container| {
            let mounts = container.volume_mounts.iter().map(|mount| mount.name.as_str());
            let devices = container.volume_devices.iter().map(|device| device.name.as_str());
            let ProtobufContainer { name, env, env_from, .. } = container;
            (name.as_str(), env.as_slice(), env_from.as_slice(), mounts.chain(devices).collect())
        });
        pod_references::references(&self.volumes, &containers)
    }

    pub(super) fn has_container(&self, name: &str) -> bool {
        self.containers.iter().chain(&self.init_containers).any(|container| container.name == name)
    }

    /// The interned view. `hollow_annotations` are the annotations of hollow containers.
    pub(super) fn view(self, hollow_annotations: Box<[(Box<str>, Box<str>)]>) -> Arc<PodSpecView> {
        let requests = self.total(|resources| &resources.requests).plus(&of(&self.overhead));
        let limits = self.total(|resources| &resources.limits);
        let Self { node_name, affinity, readiness_gates, node_selector, .. } = self;
        let all = |list: Vec<ProtobufContainer>| list.into_iter().map(Container::from).collect();
        let terms = affinity
            .and_then(|affinity| affinity.node_affinity)
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution);
        SPECS.share(PodSpecView {
            requests,
            limits,
            node_terms: terms.map(|terms| {
                terms.node_selector_terms.into_iter().map(|term| term.view(&node_name)).collect()
            }),
            containers: all(self.containers),
            init_containers: all(self.init_containers),
            restart_policy: self.restart_policy.parse().unwrap_or_default(),
            host_network: self.host_network,
            readiness_gates: readiness_gates.into_iter().map(|gate| gate.condition_type.into()).collect(),
            active_deadline: self.active_deadline_seconds.map(seconds),
            grace: seconds(self.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS)),
            os: self.os.map(|os| os.name.into()),
            node_selector: node_selector.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            tolerations: self.tolerations.into(),
            hollow_annotations,
        })
    }

    /// Total requests or limits: the sum of all containers, or the maximum during initialization if that is
    /// more, or the pod's own amounts.
    fn total(&self, part: impl Fn(&ProtobufResources) -> &BTreeMap<String, Amount>) -> ResourceList {
        let of_container = |container: &ProtobufContainer| {
            container.resources.as_ref().map(|resources| of(part(resources))).unwrap_or_default()
        };
        let mut sum = self
            .containers
            .iter()
            .fold(ResourceList::default(), |sum, container| sum.plus(&of_container(container)));
        let (mut sidecars, mut most) = (ResourceList::default(), ResourceList::default());
        for init in &self.init_containers {
            let own = of_container(init);
            let at_once = sidecars.plus(&own);
            if init.restart_policy.parse() == Ok(RestartPolicy::Always) {
                sum = sum.plus(&own);
                sidecars = at_once.clone();
            }
            most = most.or_more(&at_once);
        }
        let mut total = sum.or_more(&most);
        if let Some(own) = self.resources.as_ref().map(part) {
            let ResourceList { milli_cpu, memory, .. } = of(own);
            total.milli_cpu = if own.contains_key("cpu") { milli_cpu } else { total.milli_cpu };
            total.memory = if own.contains_key("memory") { memory } else { total.memory };
        }
        total
    }

    /// Last part of the name of the token volume.
    pub(super) fn token(&self) -> Option<[u8; 5]> {
        self.volumes.iter().find_map(|volume| token_suffix(&volume.name)?.as_bytes().try_into().ok())
    }
}

fn of(amounts: &BTreeMap<String, Amount>) -> ResourceList {
    ResourceList::of(amounts.iter().map(|(name, amount)| (name.as_str(), amount.text.as_str())))
}

fn token_suffix(volume: &str) -> Option<&str> {
    volume.strip_prefix(TOKEN_VOLUME).filter(|suffix| suffix.len() == 5)
}

/// A number of seconds, bounded: an absurd value must not stop the watch.
fn seconds(seconds: i64) -> Duration {
    let bounded = seconds.clamp(0, u32::MAX.into());
    Duration::from_secs(bounded.unsigned_abs())
}

impl From<ProtobufResources> for ContainerResources {
    fn from(ProtobufResources { limits, requests }: ProtobufResources) -> Self {
        let written = |amounts: BTreeMap<String, Amount>| {
            amounts.into_iter().map(|(name, amount)| (name.into(), amount.text.into())).collect()
        };
        Self { requests: written(requests), limits: written(limits) }
    }
}

impl From<ProtobufContainer> for Container {
    fn from(mut container: ProtobufContainer) -> Self {
        for mount in &mut container.volume_mounts {
            if token_suffix(&mount.name).is_some() {
                mount.name.truncate(TOKEN_VOLUME.len());
            }
        }
        let hook = container.lifecycle.and_then(|lifecycle| lifecycle.pre_stop);
        let sleep = hook.and_then(|hook| hook.sleep);
        Self {
            name: intern(&container.name),
            image: container.image.into(),
            restart_policy: container.restart_policy.parse().ok(),
            resources: container.resources.unwrap_or_default().into(),
            startup: container.startup_probe,
            readiness: container.readiness_probe,
            pre_stop: sleep.map(|sleep| seconds(sleep.seconds)).unwrap_or_default(),
            mounts: container.volume_mounts.into(),
            env: pod_references::variables(container.env),
        }
    }
}

impl ProtobufTerm {
    /// The only field that exists is the Node's name, which is known.
    fn view(self, node: &str) -> NodeSelectorTerm {
        let Self { match_expressions, match_fields } = self;
        NodeSelectorTerm {
            possible: !(match_expressions.is_empty() && match_fields.is_empty())
                && match_fields.iter().all(|field| field.matches(Some(node))),
            labels: match_expressions.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::VariableValue;

    fn spec(spec: Value) -> Arc<PodSpecView> {
        serde_json::from_value::<ProtobufSpec>(spec).unwrap().view([].into())
    }

    fn requests(amounts: &Value) -> Value {
        json!({"name": "a", "image": "i", "resources": {"requests": amounts}})
    }

    #[test]
    fn pods_of_one_template_share_a_spec() {
        let one = |node: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
            spec(json!({
                "nodeName": node, "containers": [requests(&json!({"cpu": "1"}))],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            }))
        };
        assert!(Arc::ptr_eq(&one("a"), &one("b")), "as a DaemonSet makes them");
    }

    #[test]
    fn the_volume_of_a_token_is_known_by_its_suffix_and_shared_without_it() {
        let spec = |suffix: &str| {
            let volume = format!("kube-api-access-{suffix}");
            let mount = json!({"name": volume, "mountPath": "/token", "readOnly": true});
            let data = json!({"name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "IfPossible"});
            serde_json::from_value::<ProtobufSpec>(json!({
                "volumes": [{"name": "data"}, {"name": volume}],
                "containers": [{"name": "a", "image": "i", "volumeMounts": [mount, data]}],
            }))
            .unwrap()
        };
        assert_eq!(spec("abcde").token(), Some(*b"abcde"));
        assert_eq!(spec("of-mine").token(), None);
        let [one, other] = ["abcde", "fghij"].map(|suffix| spec(suffix).view([].into()));
        assert!(Arc::ptr_eq(&one, &other));
        let mounts = &one.containers[0].mounts;
        assert_eq!((&*mounts[0].name, mounts[0].is_recursive()), (TOKEN_VOLUME, false));
        assert_eq!((&*mounts[1].name, mounts[1].is_recursive()), ("data", true));
    }

    #[test]
    fn the_objects_that_a_pod_needs_are_those_of_mounted_volumes_and_of_variables_unless_optional() {
        let from =
            |kind: &str, name: &str| json!({"name": "V", "valueFrom": {kind: {"name": name, "key": "k"}}});
        let volumes = json!([
            {"name": "kube-api-access-abcde", "projected": {"sources": [{"configMap": {"name": "root"}}]}},
            {"name": "a", "secret": {"secretName": "s"}},
            {"name": "b", "projected": {"sources": [
                {"configMap": {"name": "m"}}, {"secret": {"name": "t", "optional": true}}, {"serviceAccountToken": {}}]}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "unused", "configMap": {"name": "x"}},
            {"name": "d", "configMap": {"name": "y", "optional": true}},
        ]);
        let mounts =
            ["kube-api-access-abcde", "a", "b", "d"].map(|name| json!({"name": name, "mountPath": "/"}));
        let spec: ProtobufSpec = serde_json::from_value(json!({
            "volumes": volumes,
            "containers": [{
                "name": "main", "volumeMounts": mounts, "volumeDevices": [{"name": "c", "devicePath": "/dev/x"}],
                "env": [from("secretKeyRef", "k"), {"name": "W", "value": "w"}, from("secretKeyRef", "k"),
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "envFrom": [{"configMapRef": {"name": "f"}}, {"secretRef": {"name": "g", "optional": true}}],
            }],
        }))
        .unwrap();
        let found: Vec<String> = spec
            .references()
            .iter()
            .map(|reference| format!("{:?} {} {:?}", reference.kind, reference.name, reference.user))
            .collect();
        assert_eq!(
            found,
            [
                "Secret s Volume(\"a\")",
                "ConfigMap m Volume(\"b\")",
                "Claim p Volume(\"c\")",
                "ConfigMap f Container(\"main\")",
                "Secret k Container(\"main\")",
            ]
        );
        let env = spec.view([].into()).containers[0].env.clone();
        let text = ("W".into(), VariableValue::Text("w".into()));
        assert_eq!(*env, [text, ("IP".into(), VariableValue::Field("status.podIP".into()))]);
    }

    #[test]
    fn what_is_requested_is_the_most_at_any_time() {
        let amounts = |milli_cpu, memory| ResourceList { milli_cpu, memory, ..ResourceList::default() };
        let two = json!([requests(&json!({"cpu": "1", "memory": "1k"})), requests(&json!({"cpu": "500m"}))]);
        assert_eq!(spec(json!({"containers": two})).requests, amounts(1_500, 1_000));
        let init = json!([requests(&json!({"cpu": "3"}))]);
        let with_init = spec(json!({"containers": two, "initContainers": init}));
        assert_eq!(with_init.requests, amounts(3_000, 1_000));
        let mut sidecar = requests(&json!({"cpu": "1"}));
        sidecar["restartPolicy"] = json!("Always");
        let both = json!([sidecar, requests(&json!({"cpu": "3"}))]);
        let with_both = spec(json!({"containers": two, "initContainers": both}));
        assert_eq!(with_both.requests, amounts(4_000, 1_000), "the init container beside the sidecar");
        let own = json!({"requests": {"cpu": "2"}});
        let with_own =
            spec(json!({"containers": two, "resources": own, "overhead": {"cpu": "100m", "a/b": "1"}}));
        assert_eq!((with_own.requests.milli_cpu, with_own.requests.other("a/b")), (2_100, Some(1)));
    }

    #[test]
    fn times_of_a_container_are_kept() {
        let spec = spec(
            json!({"terminationGracePeriodSeconds": 5, "activeDeadlineSeconds": 9, "containers": [{
            "name": "a", "image": "i",
            "readinessProbe": {"initialDelaySeconds": 3, "periodSeconds": 4, "successThreshold": 3, "httpGet": {}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 7}}}}]}),
        );
        let secs = Duration::from_secs;
        let container = &spec.containers[0];
        let probe = container.readiness.unwrap();
        assert_eq!(
            (probe.begins_after(), probe.passes_after(), container.pre_stop),
            (secs(3), secs(8), secs(7))
        );
        assert_eq!((spec.grace, spec.active_deadline), (secs(5), Some(secs(9))));
        let bounded = |seconds: i64| self::spec(json!({ "terminationGracePeriodSeconds": seconds })).grace;
        assert_eq!((bounded(-1), bounded(i64::MAX)), (secs(0), secs(u32::MAX.into())));
    }
}
