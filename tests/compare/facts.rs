//! What was seen of a pod, as facts that can be compared.
//!
//! Two kubelets do not write the same statuses: one that is slow leaves out steps that the other shows, at another place
//! each time. So what passes by is compared step by step, for each phase, condition and container by itself; who shows a
//! step on the way that a slow kubelet has left out does not differ from it, who never shows one that it shows does. What
//! stays, in the end or at a step that a scenario waits for, is compared whole. Times, names, addresses and identifiers
//! are compared by what they are, not by their value.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use serde_json::Value;

use super::{
    record::Story,
    scenario_run::ScenarioResult,
    scenarios::{End, Scenario},
};

/// What of a pod is compared; a place where systems can differ is a scenario and one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// The phases that were seen.
    Phases,
    /// Each condition's values; the order of conditions and all that they say in the end.
    Conditions,
    /// Each container's states, and whether it was started and ready.
    Containers,
    /// All that the statuses of containers say in the end.
    ContainerStatuses,
    /// All that the status says in the end besides.
    Status,
    /// Types and reasons.
    Events,
    /// How a deletion ends, and whether it took its time.
    Deletion,
    /// A Node's Lease.
    Lease,
    /// A Node's labels and annotations that are Kubernetes' own.
    Metadata,
    /// Capacity and allocatable of a Node.
    Resources,
    /// A Node's `CSINode`.
    CsiNode,
    /// A Node, its Lease and its `CSINode` some time after edits by another client.
    Edits,
    /// A Node and its pods after a restart of the kubelet.
    Restart,
    /// What the restart left of the edits.
    EditsAfterRestart,
}

impl Aspect {
    pub const ALL: [Self; 14] = [
        Self::Phases,
        Self::Conditions,
        Self::Containers,
        Self::ContainerStatuses,
        Self::Status,
        Self::Events,
        Self::Deletion,
        Self::Lease,
        Self::Metadata,
        Self::Resources,
        Self::CsiNode,
        Self::Edits,
        Self::Restart,
        Self::EditsAfterRestart,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Phases => "phases",
            Self::Conditions => "conditions",
            Self::Containers => "containers",
            Self::ContainerStatuses => "container statuses",
            Self::Status => "status",
            Self::Events => "events",
            Self::Deletion => "deletion",
            Self::Lease => "Lease",
            Self::Metadata => "metadata",
            Self::Resources => "resources",
            Self::CsiNode => "CSINode",
            Self::Edits => "edits",
            Self::Restart => "restart",
            Self::EditsAfterRestart => "edits after a restart",
        }
    }
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub text: String,
    /// Whether it is a step on the way, which a slow kubelet may leave out.
    pub passes: bool,
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self { text, passes: false }
    }
}

/// The facts of one scenario on one system.
pub type Facts = BTreeMap<Aspect, Vec<Fact>>;

/// What a pod goes through on its way: phases, reasons of conditions, and states of containers.
const ON_THE_WAY: [&str; 10] = [
    "Pending",
    "Running",
    "",
    "ContainersNotReady",
    "ContainersNotInitialized",
    "ReadinessGatesNotReady",
    "waiting ContainerCreating",
    "waiting PodInitializing",
    "waiting ErrImagePull",
    "running",
];

/// Facts that stay.
pub fn staying(lines: Vec<String>) -> Vec<Fact> {
    lines.into_iter().map(Fact::from).collect()
}

/// What the values of one system are told apart by.
#[derive(Default)]
pub struct Known<'a> {
    /// Names, which say nothing, and what stands for them.
    pub names: Vec<(String, &'static str)>,
    /// How many pods of the system that are still there have had each address.
    pub addresses: BTreeMap<String, usize>,
    pub events: &'a [String],
    /// True for the real kubelet.
    pub is_kubelet: bool,
}

/// The facts of a pod.
pub fn of_pod(scenario: &Scenario, story: &Story, outcome: ScenarioResult, known: &Known<'_>) -> Facts {
    let until = match (scenario.end, outcome.last) {
        (End::LastStep, Some(last)) => last + 1,
        _ => story.shown.len(),
    };
    let Some((_, pod)) = story.shown[..until].last() else { return Facts::new() };
    // A kubelet kills a pod as one that has failed, and keeps that phase back while containers run (`mergePodStatus`). A busy
    // one sends it when they have ended well, and then the phase of that end. Others have no reason to.
    let fails_in_passing = |status: &&Value| {
        known.is_kubelet && status["phase"] == "Failed" && status["phase"] != pod["status"]["phase"]
    };
    let statuses = story.shown[..until].iter().map(|(_, pod)| &pod["status"]);
    let statuses: Vec<&Value> = statuses.filter(|status| !fails_in_passing(status)).collect();
    let mut facts = Facts::new();
    let phases = statuses.iter().map(|status| text(&status["phase"])).map(|phase| (phase.clone(), phase));
    facts.insert(Aspect::Phases, steps("", phases));
    facts.insert(Aspect::Conditions, conditions(&statuses, pod, known));
    let (passing, lasting) = containers(&statuses, pod, known);
    facts.insert(Aspect::Containers, passing);
    facts.insert(Aspect::ContainerStatuses, staying(lasting));
    facts.insert(Aspect::Status, staying(status(pod, known)));
    facts.insert(Aspect::Events, staying(known.events.to_vec()));
    if let Some(deletion) = scenario.deletion {
        let took = outcome.deleted.zip(story.gone).map(|(asked, gone)| gone - asked);
        let limit = Duration::from_secs(deletion.longer_than);
        let how_long = match took {
            None => "never gone".to_owned(),
            Some(took) if took > limit => format!("took more than {limit:?}"),
            Some(_) => format!("took less than {limit:?}"),
        };
        let phase = text(&pod["status"]["phase"]);
        facts.insert(Aspect::Deletion, staying(vec![how_long, format!("{phase} when it went")]));
    }
    facts
}

/// The steps that something went through: of each, how it is called on the way, and the whole of it.
fn steps(what: &str, seen: impl Iterator<Item = (String, String)>) -> Vec<Fact> {
    let mut facts: Vec<Fact> = Vec::new();
    for (step, value) in seen {
        let text = format!("{what}{value}");
        if !value.is_empty() && !facts.iter().any(|known| known.text == text) {
            facts.push(Fact { text, passes: ON_THE_WAY.contains(&step.as_str()) });
        }
    }
    facts
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The one of these that is called so.
fn find<'a>(values: &'a Value, key: &str, name: &Value) -> Option<&'a Value> {
    list(values).iter().find(|value| value[key] == *name)
}

fn conditions(statuses: &[&Value], pod: &Value, known: &Known<'_>) -> Vec<Fact> {
    let last = &pod["status"]["conditions"];
    let order: Vec<String> = list(last).iter().map(|condition| text(&condition["type"])).collect();
    let mut lines = vec![format!("in this order: {}", order.join(", "))];
    let mut facts = Vec::new();
    let value =
        |shown: &Value| format!("{} {}", text(&shown["status"]), text(&shown["reason"])).trim().to_owned();
    for condition in list(last) {
        let name = text(&condition["type"]);
        let seen = statuses.iter().filter_map(|status| {
            let shown = find(&status["conditions"], "type", &condition["type"])?;
            // The scheduler's word, which tries again.
            if shown["reason"] == "Unschedulable" {
                return None;
            }
            Some((text(&shown["reason"]), value(shown)))
        });
        facts.extend(steps(&format!("{name}: "), seen));
        lines.push(format!("{name} in the end: {}", value(condition)));
        flatten(&name, condition, pod, known, &["type", "status", "reason"], &mut lines);
    }
    facts.extend(staying(lines));
    facts
}

/// What passes by and what stays of the containers.
fn containers(statuses: &[&Value], pod: &Value, known: &Known<'_>) -> (Vec<Fact>, Vec<String>) {
    let (mut passing, mut lasting) = (Vec::new(), Vec::new());
    for field in ["initContainerStatuses", "containerStatuses"] {
        for container in list(&pod["status"][field]) {
            let name = text(&container["name"]);
            let shown: Vec<&Value> = statuses
                .iter()
                .filter_map(|status| find(&status[field], "name", &container["name"]))
                .collect();
            let states = shown.iter().map(|shown| state(&shown["state"]));
            passing.extend(steps(&format!("{name}: "), states.map(|state| (state.clone(), state))));
            for flag in ["ready", "started"] {
                let values = shown.iter().filter_map(|shown| shown[flag].as_bool());
                let values = values.map(|flag| (String::new(), flag.to_string()));
                passing.extend(steps(&format!("{name} {flag}: "), values));
            }
            // The user is told by some runtimes and not by others.
            flatten(&name, container, pod, known, &["name", "user"], &mut lasting);
        }
    }
    (passing, lasting)
}

fn state(state: &Value) -> String {
    let Some((kind, state)) = state.as_object().and_then(|state| state.iter().next()) else {
        return "no state".to_owned();
    };
    let code = state["exitCode"].as_i64().map(|code| format!(" {code}")).unwrap_or_default();
    format!("{kind} {}{code}", text(&state["reason"])).trim().to_owned()
}

fn status(pod: &Value, known: &Known<'_>) -> Vec<String> {
    let elsewhere = ["conditions", "containerStatuses", "initContainerStatuses"];
    let mut lines = Vec::new();
    let mut status = pod["status"].clone();
    for part in ["requests", "limits"] {
        if let Some(amounts) =
            status.pointer_mut(&format!("/resources/{part}")).and_then(Value::as_object_mut)
        {
            amounts.retain(|resource, _| of_cgroups(part).contains(&resource.as_str()));
            if amounts.is_empty() {
                status["resources"].as_object_mut().unwrap().remove(part);
            }
        }
    }
    flatten("", &status, pod, known, &elsewhere, &mut lines);
    lines
}

/// The resources of a whole pod that are the same before and after a kubelet has read them back from its cgroups, whenever
/// that is: those know nothing of others, and the memory of a pod without a limit is limited to more than there is.
fn of_cgroups(part: &str) -> &'static [&'static str] {
    if part == "limits" { &["cpu"] } else { &["cpu", "memory"] }
}

/// Each value below `value` with its path, sorted by it, without the fields that other facts compare.
pub fn flatten(
    path: &str,
    value: &Value,
    pod: &Value,
    known: &Known<'_>,
    without: &[&str],
    lines: &mut Vec<String>,
) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields.iter().filter(|(key, _)| !without.contains(&key.as_str())) {
                flatten(&below(key), value, pod, known, &[], lines);
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                flatten(&format!("{path}[{at}]"), value, pod, known, &[], lines);
            }
        }
        Value::String(text) => lines.push(format!("{path}: {}", word(path, text, pod, known))),
        other if path.ends_with("bservedGeneration") => {
            let own = *other == pod["metadata"]["generation"];
            lines.push(format!("{path}: {}", if own { "the pod's" } else { "another than the pod's" }));
        }
        other if path.ends_with("restartCount") && other.as_u64() >= Some(2) => {
            lines.push(format!("{path}: 2 or more"));
        }
        other => lines.push(format!("{path}: {other}")),
    }
}

/// What a string is, where its value says nothing.
fn word(path: &str, text: &str, pod: &Value, known: &Known<'_>) -> String {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return "a time".to_owned();
    }
    if text.parse::<IpAddr>().is_ok() {
        let host = &pod["status"]["hostIP"];
        return match known.addresses.get(text) {
            _ if path.starts_with("host") => "an address",
            _ if *host == *text && pod["spec"]["hostNetwork"] == true => "the Node's address",
            Some(2..) => "an address that others have too",
            _ => "an address of its own",
        }
        .to_owned();
    }
    if path.ends_with("resources.requests.cpu") {
        return "an amount, as cgroups round it".to_owned();
    }
    if path.ends_with("essage") {
        // What a runtime says of its errors is its own.
        if ["rpc error", "failed to pull", "failed to create", "exec: ", "back-off ", "Back-off "]
            .iter()
            .any(|start| text.starts_with(start))
        {
            return "some words".to_owned();
        }
        return numbers_left_out(&names_left_out(text, known));
    }
    // The volume of the token, which has a name of its own in each pod.
    if find(&pod["spec"]["volumes"], "name", &Value::from(text))
        .is_some_and(|volume| volume["projected"].is_object())
    {
        return "the pod's kube-api-access".to_owned();
    }
    identifiers_left_out(&names_left_out(text, known))
}

fn names_left_out(text: &str, known: &Known<'_>) -> String {
    known.names.iter().fold(text.to_owned(), |text, (name, stands)| text.replace(name.as_str(), stands))
}

/// `text` with `N` for each number.
fn numbers_left_out(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match (letter.is_ascii_digit(), out.ends_with('N')) {
            (true, true) => {}
            (true, false) => out.push('N'),
            (false, _) => out.push(letter),
        }
    }
    out
}

/// `text` without 64 hexadecimal digits.
fn identifiers_left_out(text: &str) -> String {
    let is_id = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split_inclusive(['/', ':']).map(|word| if is_id(word) { "64 digits" } else { word }).collect()
}

pub mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::super::scenarios;
    #[allow(clippy::wildcard_imports, reason = "tests of this file, in no module that only tests have")]
    use super::*;

    fn shown(phase: &str, ready: &str, state: &Value) -> (Instant, Value) {
        let pod = json!({"metadata": {"generation": 1}, "status": {
            "phase": phase, "podIP": "10.0.0.1", "hostIP": "10.0.0.9", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": ready, "observedGeneration": 1}],
            "containerStatuses": [{"name": "main", "ready": ready == "True", "state": state,
                "containerID": format!("containerd://{}", "0".repeat(64))}],
        }});
        (Instant::now(), pod)
    }

    fn facts(shown: Vec<(Instant, Value)>, is_kubelet: bool) -> Facts {
        let plain = scenarios::all().into_iter().find(|scenario| scenario.name == "plain").unwrap();
        let known = Known { is_kubelet, ..Known::default() };
        of_pod(&plain, &Story { shown, gone: None }, ScenarioResult::default(), &known)
    }

    pub fn what_passes_by_is_told_from_what_stays() {
        let waits = json!({"waiting": {"reason": "ContainerCreating"}});
        let runs = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let ends = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let seen = [
            shown("Pending", "False", &waits),
            shown("Running", "True", &runs),
            shown("Running", "False", &ends),
            shown("Running", "True", &runs),
        ];
        let facts = facts(seen.to_vec(), false);
        let has = |aspect: Aspect, text: &str, passes: bool| {
            let fact = Fact { text: text.to_owned(), passes };
            assert!(facts[&aspect].contains(&fact), "{fact:?}: {:?}", facts[&aspect]);
        };
        assert_eq!(facts[&Aspect::Phases].len(), 2);
        has(Aspect::Phases, "Pending", true);
        has(Aspect::Containers, "main: waiting ContainerCreating", true);
        has(Aspect::Containers, "main: terminated Error 3", false);
        has(Aspect::Conditions, "Ready: False", true);
        has(Aspect::Conditions, "Ready in the end: True", false);
        has(Aspect::ContainerStatuses, "main.containerID: containerd://64 digits", false);
        has(Aspect::Status, "podIP: an address of its own", false);
        has(Aspect::Status, "startTime: a time", false);
    }

    pub fn a_pod_of_a_kubelet_that_succeeds_in_the_end_has_not_failed() {
        let ends = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let phases = |end: &str, is_kubelet: bool| -> Vec<String> {
            let seen = ["Failed", end].map(|phase| shown(phase, "False", &ends));
            facts(seen.to_vec(), is_kubelet)[&Aspect::Phases].iter().map(|fact| fact.text.clone()).collect()
        };
        assert_eq!(phases("Succeeded", true), ["Succeeded"]);
        assert_eq!(phases("Failed", true), ["Failed"]);
        assert_eq!(phases("Succeeded", false), ["Failed", "Succeeded"], "another system");
    }
}
