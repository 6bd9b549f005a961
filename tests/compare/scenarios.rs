//! The pods that are compared, and what is done to each. A container does what its command says where it runs for real;
//! a hollow kubelet of ours is told the same by annotations.

use serde_json::{Value, json};

use super::{
    SLOT, TAINT,
    registry::{IMAGE, MISSING, OTHER},
};

/// Ends well when it is told to stop.
const OBEYS: &str = "trap 'exit 0' TERM; sleep 86400 & wait";
/// The annotation that says so.
const IN_ORDER: [(&str, &str); 1] = [("exit-code", "0")];
/// Takes its time to end well.
const SLOW: &str = "trap 'sleep 6; exit 0' TERM; sleep 86400 & wait";
/// The first process of a container ignores what it has no handler for.
const DEAF: &str = "sleep 86400";
/// A condition that only the test sets.
pub const GATE: &str = "example.com/gate";

/// One pod, on each node.
pub struct Scenario {
    pub name: &'static str,
    pub spec: Value,
    /// Annotations, without their prefix.
    pub annotated: Vec<(&'static str, &'static str)>,
    /// Whether it is bound without the scheduler, which would not choose this node.
    pub by_hand: bool,
    /// The scenario whose pod on the same node has to run before this one is made.
    pub after: Option<&'static str>,
    pub steps: Vec<Step>,
    pub end: End,
    /// How many seconds its deletion takes at least, where it has to take time, or may take at most.
    pub deletion: Option<Deletion>,
}

/// What is done to a pod, one after the other.
pub enum Step {
    /// It is waited for; other systems than the real one may never come there.
    Until(Goal),
    Delete(Option<u32>),
    /// Long enough for any kubelet to have begun with what it was told.
    Pause,
    /// Through a disruption budget that allows it.
    Evict,
    /// A strategic merge patch of its spec.
    Spec(Value),
    /// Somebody else writes a condition: its type and status.
    Condition(&'static str, &'static str),
    /// Somebody else writes this over the status, by a strategic merge patch.
    Status(Value),
}

/// What a pod shows.
#[derive(Debug)]
pub enum Goal {
    Ready,
    Over,
    Gone,
    Condition(&'static str, &'static str),
    /// Its first container waits for this reason, after so many restarts or more: a busy kubelet may not say so each time.
    Waits(&'static str, u64),
    /// Its first container is ready after so many restarts.
    Restarted(u64),
    Observed(u64),
}

/// How much of what is seen of a pod is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All of it: in the end nothing changes any more.
    Quiet,
    /// Until the last step is done: it goes on for ever.
    LastStep,
}

/// Whether a deletion takes longer than so many seconds.
#[derive(Clone, Copy)]
pub struct Deletion {
    pub longer_than: u64,
}

impl Goal {
    pub fn is_met(&self, pod: &Value) -> bool {
        let status = &pod["status"];
        let has = |r#type: &str, value: &str| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|shown| shown["type"] == r#type && shown["status"] == value)
        };
        match self {
            Self::Ready => has("Ready", "True"),
            Self::Over => status["phase"] == "Succeeded" || status["phase"] == "Failed",
            Self::Gone => false,
            Self::Condition(r#type, value) => has(r#type, value),
            Self::Waits(reason, restarts) => {
                let first = &status["containerStatuses"][0];
                let after = first["restartCount"].as_u64().unwrap_or_default();
                first["state"]["waiting"]["reason"] == *reason && after >= *restarts
            }
            Self::Restarted(restarts) => {
                let first = &status["containerStatuses"][0];
                first["restartCount"] == *restarts && first["ready"] == true
            }
            Self::Observed(generation) => {
                status["observedGeneration"].as_u64().is_some_and(|seen| seen >= *generation)
            }
        }
    }
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "Always", "command": ["sh", "-c", script]})
}

#[allow(clippy::needless_pass_by_value, reason = "it is written in place")]
fn with(mut object: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

fn of(containers: &[Value]) -> Value {
    json!({"containers": containers})
}

fn main_does(script: &str) -> Value {
    of(&[container("main", script)])
}

fn main_with(more: Value) -> Value {
    of(&[with(container("main", OBEYS), more)])
}

fn deaf() -> Value {
    of(&[with(container("main", ""), json!({"command": DEAF.split(' ').collect::<Vec<_>>()}))])
}

fn requests(resource: &str, amount: &str) -> Value {
    json!({"resources": {"requests": {resource: amount}, "limits": {resource: amount}}})
}

impl Scenario {
    /// A pod that takes a second to start and then stays.
    fn new(name: &'static str, spec: Value) -> Self {
        let spec = with(
            json!({
                // The node has no DNS of the cluster, and would say so at each pod.
                "dnsPolicy": "Default",
                "tolerations": [{"key": TAINT, "operator": "Exists"}],
            }),
            spec,
        );
        Self {
            name,
            spec,
            annotated: vec![("start-time", "1s")],
            by_hand: false,
            after: None,
            steps: vec![Step::Until(Goal::Ready)],
            end: End::Quiet,
            deletion: None,
        }
    }

    fn annotated(mut self, annotated: &[(&'static str, &'static str)]) -> Self {
        self.annotated.extend(annotated);
        self
    }

    fn steps(self, steps: Vec<Step>) -> Self {
        Self { steps, ..self }
    }

    fn until(self, goal: Goal) -> Self {
        self.steps(vec![Step::Until(goal)])
    }

    /// Its containers end by themselves.
    fn never(mut self) -> Self {
        self.spec["restartPolicy"] = json!("Never");
        self.until(Goal::Over)
    }

    /// It goes on for ever.
    fn endless(self) -> Self {
        Self { end: End::LastStep, ..self }
    }

    /// It is deleted when it is Ready.
    fn deleted(self, longer_than: u64) -> Self {
        let steps = vec![Step::Until(Goal::Ready), Step::Delete(None), Step::Until(Goal::Gone)];
        Self { deletion: Some(Deletion { longer_than }), ..self }.steps(steps)
    }

    /// Bound by hand and refused.
    fn refused(self) -> Self {
        Self { by_hand: true, ..self }.until(Goal::Over)
    }
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    [starts(), ends(), deletions(), refusals()].into_iter().flatten().collect()
}

fn starts() -> Vec<Scenario> {
    let exec = json!({"command": ["true"]});
    let probe = |more: Value| with(json!({"exec": exec, "timeoutSeconds": 20, "periodSeconds": 2}), more);
    let amounts =
        json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    vec![
        // What nobody has told anything.
        Scenario { annotated: Vec::new(), ..Scenario::new("plain", main_does(OBEYS)) },
        Scenario::new("two", of(&[with(container("main", OBEYS), json!({"resources": amounts})), container("beside", OBEYS)])),
        Scenario::new("host-network", with(main_does(OBEYS), json!({"hostNetwork": true}))),
        Scenario::new(
            "init",
            with(main_does(OBEYS), json!({"initContainers": [container("first", "sleep 5"), container("second", "sleep 5")]})),
        )
        .annotated(&[("start-time.first", "1s"), ("start-time.second", "1s"), ("run-time.first", "5s"), ("run-time.second", "5s")]),
        Scenario::new("init-fails", with(main_does(OBEYS), json!({"initContainers": [container("first", "sleep 5; exit 1")]})))
            .annotated(&[("start-time.first", "1s"), ("run-time.first", "5s"), ("exit-code.first", "1")])
            .never(),
        Scenario::new(
            "sidecar",
            with(main_does("sleep 8"), json!({"initContainers": [with(container("side", OBEYS), json!({"restartPolicy": "Always"}))]})),
        )
        .annotated(&[("start-time.side", "1s"), ("run-time", "8s"), ("exit-code.side", "0")])
        .never(),
        Scenario::new(
            "probes",
            main_with(json!({
                "startupProbe": probe(json!({"initialDelaySeconds": 4})),
                "readinessProbe": probe(json!({"initialDelaySeconds": 6, "successThreshold": 2})),
            })),
        ),
        Scenario::new("gate", with(main_does(OBEYS), json!({"readinessGates": [{"conditionType": GATE}]}))).steps(vec![
            Step::Until(Goal::Condition("ContainersReady", "True")),
            Step::Condition(GATE, "True"),
            Step::Until(Goal::Ready),
        ]),
        Scenario::new("marked", main_does(OBEYS)).steps(vec![
            Step::Until(Goal::Ready),
            Step::Condition("Ready", "False"),
            Step::Until(Goal::Condition("Ready", "False")),
            Step::Until(Goal::Ready),
        ]),
        Scenario::new("overwritten", main_does(OBEYS)).steps(vec![
            Step::Until(Goal::Ready),
            Step::Status(json!({
                "phase": "Pending",
                "message": "edited",
                "startTime": "2026-01-01T00:00:00Z",
                "containerStatuses": [{"name": "main", "restartCount": 7, "ready": false, "image": "edited", "imageID": "edited"}],
            })),
            Step::Pause,
        ]),
        Scenario::new("changed", main_does(OBEYS)).steps(vec![
            Step::Until(Goal::Ready),
            Step::Spec(json!({"activeDeadlineSeconds": 86_400})),
            Step::Until(Goal::Observed(2)),
        ]),
        Scenario::new("other-image", main_does(OBEYS)).annotated(&IN_ORDER).steps(vec![
            Step::Until(Goal::Ready),
            Step::Spec(json!({"containers": [{"name": "main", "image": OTHER}]})),
            Step::Until(Goal::Restarted(1)),
        ]),
        Scenario::new("no-image", main_with(json!({"image": MISSING})))
            .annotated(&[("image-error", "not found")])
            .until(Goal::Waits("ImagePullBackOff", 0))
            .endless(),
        Scenario::new("missing-variables", main_with(json!({"envFrom": [{"configMapRef": {"name": "none"}}]})))
            .until(Goal::Waits("CreateContainerConfigError", 0))
            .endless(),
        Scenario::new(
            "missing-volume",
            with(
                main_with(json!({"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]})),
                json!({"volumes": [{"name": "keys", "secret": {"secretName": "none"}}]}),
            ),
        )
        .until(Goal::Waits("ContainerCreating", 0))
        .endless(),
        Scenario::new("no-command", main_with(json!({"command": ["/none"]})))
            .annotated(&[("start-error", "exec: \"/none\": no such file")])
            .never(),
        Scenario::new("no-command-again", main_with(json!({"command": ["/none"]})))
            .annotated(&[("start-error", "exec: \"/none\": no such file")])
            .until(Goal::Waits("CrashLoopBackOff", 2))
            .endless(),
    ]
}

fn ends() -> Vec<Scenario> {
    let on_failure = |spec: Value| with(spec, json!({"restartPolicy": "OnFailure"}));
    let memory = json!({"resources": {"limits": {"memory": "48Mi"}}});
    vec![
        Scenario::new("completes", main_does("sleep 5")).annotated(&[("run-time", "5s")]).never(),
        Scenario::new("fails", main_does("sleep 5; exit 3"))
            .annotated(&[("run-time", "5s"), ("exit-code", "3")])
            .never(),
        Scenario::new(
            "out-of-memory",
            of(&[with(container("main", "sleep 5; exec tail /dev/zero"), memory)]),
        )
        .annotated(&[("run-time", "5s"), ("exit-reason", "OOMKilled")])
        .never(),
        Scenario::new(
            "one-of-two",
            of(&[container("main", "sleep 5"), container("beside", "sleep 10; exit 1")]),
        )
        .annotated(&[
            ("start-time", "1s"),
            ("run-time.main", "5s"),
            ("run-time.beside", "10s"),
            ("exit-code.beside", "1"),
        ])
        .never(),
        Scenario::new("on-failure", on_failure(main_does("sleep 3; exit 1")))
            .annotated(&[("run-time", "3s"), ("exit-code", "1")])
            .until(Goal::Waits("CrashLoopBackOff", 2))
            .endless(),
        Scenario::new("always", main_does("sleep 3"))
            .annotated(&[("run-time", "3s")])
            .until(Goal::Waits("CrashLoopBackOff", 2))
            .endless(),
        Scenario::new("deadline", with(main_does(OBEYS), json!({"activeDeadlineSeconds": 20})))
            .annotated(&IN_ORDER)
            .until(Goal::Over),
    ]
}

fn deletions() -> Vec<Scenario> {
    let slow = |name: &str| with(container(name, SLOW), json!({"restartPolicy": "Always"}));
    let grace = |spec: Value, seconds: u64| with(spec, json!({"terminationGracePeriodSeconds": seconds}));
    // Who waits for the grace period is told from who is slow.
    let long = |spec: Value| grace(spec, 120);
    let at_once = Deletion { longer_than: 100 };
    vec![
        Scenario::new("deleted", long(main_does(OBEYS))).annotated(&IN_ORDER).deleted(100),
        // In a shared process namespace a container is not the first process, and the signal ends it.
        Scenario::new("deleted-by-signal", long(with(deaf(), json!({"shareProcessNamespace": true})))).deleted(100),
        Scenario::new("deleted-deaf", grace(deaf(), 10)).annotated(&[("stop-time", "1h")]).deleted(9),
        Scenario {
            deletion: Some(Deletion { longer_than: 45 }),
            ..Scenario::new("deleted-sooner", grace(deaf(), 50)).annotated(&[("stop-time", "1h")]).steps(vec![
                Step::Until(Goal::Ready),
                Step::Delete(None),
                Step::Pause,
                Step::Delete(Some(4)),
                Step::Until(Goal::Gone),
            ])
        },
        Scenario::new("pre-stop", main_with(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}})))
            .annotated(&IN_ORDER)
            .deleted(4),
        Scenario::new(
            "deleted-sidecar",
            long(with(main_does(OBEYS), json!({"initContainers": [with(container("side", OBEYS), json!({"restartPolicy": "Always"}))]}))),
        )
        .annotated(&[("start-time.side", "1s"), ("exit-code", "0"), ("exit-code.side", "0")])
        .deleted(100),
        Scenario::new(
            "deleted-sidecars",
            with(main_does(OBEYS), json!({"initContainers": [slow("side"), slow("other")]})),
        )
        .annotated(&[
            ("exit-code", "0"),
            ("start-time.side", "1s"),
            ("stop-time.side", "6s"),
            ("exit-code.side", "0"),
            ("start-time.other", "1s"),
            ("stop-time.other", "6s"),
            ("exit-code.other", "0"),
        ])
        // One after another.
        .deleted(11),
        Scenario {
            deletion: Some(at_once),
            ..Scenario::new("deleted-early", long(main_with(json!({"image": MISSING}))))
                .annotated(&[("image-error", "not found")])
                .steps(vec![Step::Until(Goal::Waits("ImagePullBackOff", 0)), Step::Delete(None), Step::Until(Goal::Gone)])
        },
        Scenario {
            deletion: Some(at_once),
            ..Scenario::new("evicted", long(main_does(OBEYS))).annotated(&IN_ORDER).steps(vec![
                Step::Until(Goal::Ready),
                Step::Evict,
                Step::Until(Goal::Gone),
            ])
        },
    ]
}

fn refusals() -> Vec<Scenario> {
    vec![
        Scenario::new("out-of-cpu", main_with(requests("cpu", "5k"))).refused(),
        Scenario::new("out-of-memory-at-once", main_with(requests("memory", "5Pi"))).refused(),
        Scenario::new(
            "selector",
            with(main_does(OBEYS), json!({"nodeSelector": {"example.com/no-such": "label"}})),
        )
        .refused(),
        Scenario::new("other-os", with(main_does(OBEYS), json!({"os": {"name": "windows"}}))).refused(),
        // Once another pod runs, so that every kubelet has heard of the taint.
        Scenario {
            after: Some("plain"),
            ..Scenario::new("taint", with(main_does(OBEYS), json!({"tolerations": []}))).refused()
        },
        Scenario::new("preempted", main_with(requests(SLOT, "1")))
            .annotated(&IN_ORDER)
            .steps(vec![Step::Until(Goal::Ready), Step::Until(Goal::Over)]),
        Scenario {
            after: Some("preempted"),
            by_hand: true,
            ..Scenario::new(
                "critical",
                with(main_with(requests(SLOT, "1")), json!({"priorityClassName": "system-node-critical"})),
            )
        },
    ]
}
