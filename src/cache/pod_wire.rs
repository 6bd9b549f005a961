//! The spec of a pod as the watch delivers it: fields nobody reads are skipped while parsing.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Amounts, Container, ContainerResources, Mount, NodeTerm, PodSpecView, Probe, Requirement, RestartPolicy,
    TOKEN_VOLUME, Toleration, pool::Pool, word,
};

/// The specs that pods of this process have.
static SPECS: LazyLock<Pool<PodSpecView>> = LazyLock::new(Pool::default);
/// How long a pod may take to stop that says nothing else, in seconds.
const GRACE_SECONDS: i64 = 30;

/// The spec as the watch delivers it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireSpec {
    pub(super) node_name: String,
    pub(super) priority: i32,
    pub(super) volumes: Vec<Volume>,
    containers: Vec<WireContainer>,
    init_containers: Vec<WireContainer>,
    restart_policy: RestartPolicy,
    host_network: bool,
    readiness_gates: Vec<Gate>,
    active_deadline_seconds: Option<i64>,
    termination_grace_period_seconds: Option<i64>,
    os: Option<Os>,
    overhead: BTreeMap<String, Quantity>,
    resources: WireResources,
    node_selector: BTreeMap<Box<str>, Box<str>>,
    affinity: Affinity,
    tolerations: Box<[Toleration]>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Volume {
    #[serde(default)]
    pub(super) name: String,
    pub(super) empty_dir: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireContainer {
    name: String,
    image: Box<str>,
    restart_policy: Option<RestartPolicy>,
    resources: WireResources,
    startup_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
    lifecycle: Lifecycle,
    volume_mounts: Vec<WireMount>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMount {
    name: Box<str>,
    mount_path: Box<str>,
    read_only: bool,
    recursive_read_only: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireResources {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    pre_stop: Option<Hook>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Hook {
    sleep: Option<Sleep>,
}

#[derive(Clone, Debug, Deserialize)]
struct Sleep {
    seconds: i64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: Box<str>,
}

#[derive(Clone, Debug, Deserialize)]
struct Os {
    name: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<Terms>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terms {
    node_selector_terms: Vec<WireTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTerm {
    match_expressions: Box<[Requirement]>,
    match_fields: Vec<Requirement>,
}

impl WireSpec {
    /// The shared form. `told` are the annotations that say what hollow containers do.
    pub(super) fn view(self, told: Box<[(Box<str>, Box<str>)]>) -> Arc<PodSpecView> {
        let requests = self.total(|resources| &resources.requests).plus(&of(&self.overhead));
        let limits = self.total(|resources| &resources.limits);
        let Self { node_name, affinity, .. } = self;
        let all = |list: Vec<WireContainer>| list.into_iter().map(Container::from).collect();
        let terms = affinity.node_affinity.required_during_scheduling_ignored_during_execution;
        SPECS.share(PodSpecView {
            requests,
            limits,
            node_terms: terms.map(|terms| {
                terms.node_selector_terms.into_iter().map(|term| term.view(&node_name)).collect()
            }),
            containers: all(self.containers),
            init_containers: all(self.init_containers),
            restart_policy: self.restart_policy,
            host_network: self.host_network,
            readiness_gates: self.readiness_gates.into_iter().map(|gate| gate.condition_type).collect(),
            active_deadline: self.active_deadline_seconds.map(seconds),
            grace: seconds(self.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS)),
            os: self.os.map(|os| os.name),
            node_selector: self.node_selector.into_iter().collect(),
            tolerations: self.tolerations,
            told,
        })
    }

    /// What the pod requests, or is limited to: all its containers at once, or more while it is made ready, or what the pod
    /// itself says.
    fn total(&self, part: impl Fn(&WireResources) -> &BTreeMap<String, Quantity>) -> Amounts {
        let mut sum = self
            .containers
            .iter()
            .fold(Amounts::default(), |sum, container| sum.plus(&of(part(&container.resources))));
        let (mut sidecars, mut most) = (Amounts::default(), Amounts::default());
        for init in &self.init_containers {
            let own = of(part(&init.resources));
            let at_once = sidecars.plus(&own);
            if init.restart_policy == Some(RestartPolicy::Always) {
                sum = sum.plus(&own);
                sidecars = at_once.clone();
            }
            most = most.or_more(&at_once);
        }
        let mut total = sum.or_more(&most);
        let own = part(&self.resources);
        if !own.is_empty() {
            let Amounts { milli_cpu, memory, .. } = of(own);
            total.milli_cpu = if own.contains_key("cpu") { milli_cpu } else { total.milli_cpu };
            total.memory = if own.contains_key("memory") { memory } else { total.memory };
        }
        total
    }

    /// The end of the name of the volume of its token.
    pub(super) fn token(&self) -> Option<[u8; 5]> {
        self.volumes.iter().find_map(|volume| token_suffix(&volume.name)?.as_bytes().try_into().ok())
    }
}

fn of(amounts: &BTreeMap<String, Quantity>) -> Amounts {
    Amounts::of(amounts.iter().map(|(name, amount)| (name.as_str(), amount)))
}

fn token_suffix(volume: &str) -> Option<&str> {
    volume.strip_prefix(TOKEN_VOLUME).filter(|suffix| suffix.len() == 5)
}

impl From<WireMount> for Mount {
    fn from(WireMount { name, mount_path, read_only, recursive_read_only }: WireMount) -> Self {
        Self {
            volume: if token_suffix(&name).is_some() { TOKEN_VOLUME.into() } else { name },
            path: mount_path,
            read_only,
            recursive: recursive_read_only.is_some_and(|wish| *wish != *"Disabled"),
        }
    }
}

/// A number of seconds as anybody may have written it: one that is out of bounds must not stop the watch.
fn seconds(seconds: i64) -> Duration {
    let bounded = seconds.clamp(0, u32::MAX.into());
    Duration::from_secs(bounded.unsigned_abs())
}

impl From<WireContainer> for Container {
    fn from(container: WireContainer) -> Self {
        let WireContainer {
            name,
            image,
            restart_policy,
            resources,
            startup_probe,
            readiness_probe,
            lifecycle,
            volume_mounts,
        } = container;
        let written = |amounts: BTreeMap<String, Quantity>| {
            amounts.into_iter().map(|(name, amount)| (name.into(), amount.0.into())).collect()
        };
        let sleep = lifecycle.pre_stop.and_then(|hook| hook.sleep);
        Self {
            name: word(&name),
            image,
            restart_policy,
            resources: ContainerResources {
                requests: written(resources.requests),
                limits: written(resources.limits),
            },
            startup: startup_probe,
            readiness: readiness_probe,
            pre_stop: sleep.map(|sleep| seconds(sleep.seconds)).unwrap_or_default(),
            mounts: volume_mounts.into_iter().map(Mount::from).collect(),
        }
    }
}

impl WireTerm {
    /// The only field there is is the Node's name, and that is known.
    fn view(self, node: &str) -> NodeTerm {
        let Self { match_expressions, match_fields } = self;
        let says_something = !match_expressions.is_empty() || !match_fields.is_empty();
        let is_wanted = |field: &Requirement| field.matches(Some(node));
        NodeTerm { possible: says_something && match_fields.iter().all(is_wanted), labels: match_expressions }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(spec: Value) -> Arc<PodSpecView> {
        serde_json::from_value::<WireSpec>(spec).unwrap().view([].into())
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
        let wire = |suffix: &str| {
            let volume = format!("kube-api-access-{suffix}");
            let mount = json!({"name": volume, "mountPath": "/token", "readOnly": true});
            let data = json!({"name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "IfPossible"});
            serde_json::from_value::<WireSpec>(json!({
                "volumes": [{"name": "data"}, {"name": volume}],
                "containers": [{"name": "a", "image": "i", "volumeMounts": [mount, data]}],
            }))
            .unwrap()
        };
        assert_eq!(wire("abcde").token(), Some(*b"abcde"));
        assert_eq!(wire("of-mine").token(), None);
        let [one, other] = ["abcde", "fghij"].map(|suffix| wire(suffix).view([].into()));
        assert!(Arc::ptr_eq(&one, &other));
        let mounts = &one.containers[0].mounts;
        assert_eq!((&*mounts[0].volume, mounts[0].recursive), (TOKEN_VOLUME, false));
        assert_eq!((&*mounts[1].volume, mounts[1].recursive), ("data", true));
    }

    #[test]
    fn what_is_requested_is_the_most_at_any_time() {
        let amounts = |milli_cpu, memory| Amounts { milli_cpu, memory, ..Amounts::default() };
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
