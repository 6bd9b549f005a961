//! Fields of generated objects, with values that have a place and values that have none.

use super::{
    cases::{Builder, Fate, steps},
    *,
};

impl Builder {
    pub(super) fn set(&mut self) {
        let numbers =
            |values: &[u64]| Self::same(&values.iter().map(|value| json!(value)).collect::<Vec<_>>());
        let nodes = [json!(0), json!("0%"), json!(2), json!("25%"), json!("100%")];
        let no_number =
            [json!(-1), json!("3"), json!(1.5), json!(true), json!({"a": 1}), json!([]), json!(100_001)];
        self.field("spec.replicas", ("NodeSet", "/spec/replicas"), &numbers(&[0, 3, 100_000]), &no_number);
        let seconds = [(json!(1), json!("1s")), (json!(90), json!("1m30s"))];
        let no_seconds = [json!("5s"), json!(-1), json!(700_000), json!({"b": null})];
        let place = ("NodeSet", "/spec/minReadyTime");
        let least = self.field("spec.minReadySeconds", place, &seconds, &no_seconds);
        if self.case.kind == "MachineSet" {
            let orders = Self::same(&[json!("Newest"), json!("Oldest")]);
            let bad = [json!("Random"), json!(7)];
            self.field("spec.deletePolicy", ("NodeSet", "/spec/scaleDown/order"), &orders, &bad);
            if self.choose(3) == 0 {
                self.add(&steps("spec.strategy.type"), json!("RollingUpdate"), &Fate::Lost);
            }
        } else {
            let types = Self::same(&[json!("RollingUpdate"), json!("OnDelete")]);
            let bad = [json!("Recreate"), json!(1)];
            self.field("spec.strategy.type", ("NodeSet", "/spec/strategy/type"), &types, &bad);
            let mut bad = vec![json!("101%"), json!("+1%"), json!("2"), json!(-1), json!(2.5)];
            let mut of_strategy = |field: &str, good: &[Value], bad: &[Value]| {
                let path = format!("spec.strategy.rollingUpdate.{field}");
                let pointer = format!("/spec/strategy/rollingUpdate/{field}");
                self.field(&path, ("NodeSet", &pointer), &Self::same(good), bad)
            };
            // A surge of zero needs a Node that may be missing.
            if of_strategy("maxUnavailable", &nodes, &bad).is_some_and(|nodes| nodes != 0 && nodes != "0%") {
                of_strategy("maxSurge", &nodes, &bad);
            } else {
                bad.extend([json!(0), json!("0%")]);
                of_strategy("maxSurge", &nodes[2..], &bad);
            }
            // The deadline is above the time that a Node must be ready.
            let is_above = |limit: &Value| limit.as_u64() > least.as_ref().and_then(Value::as_u64);
            let (above, below): (Vec<_>, Vec<_>) =
                seconds.into_iter().partition(|(limit, _)| is_above(limit));
            let bad: Vec<_> = below.into_iter().map(|(limit, _)| limit).chain(no_seconds).collect();
            let place = ("NodeSet", "/spec/progressDeadline");
            self.field("spec.progressDeadlineSeconds", place, &above, &bad);
            let place = ("NodeSet", "/spec/revisionHistoryLimit");
            self.field("spec.revisionHistoryLimit", place, &numbers(&[0, 10]), &no_number);
            let place = ("NodeSet", "/spec/paused");
            self.field("spec.paused", place, &Self::same(&[json!(true), json!(false)]), &[json!("true")]);
        }
        let bad = [("b", json!(3))];
        self.texts("metadata.labels", "/metadata/labels", "", &bad);
        let bad = [("cluster.k8s.io/delete-machine", json!("yes")), ("b", json!(true))];
        self.texts("metadata.annotations", "/metadata/annotations", "", &bad);
        self.bounds();
        match self.choose(3) {
            0 => {
                let pointer = "/spec/template/labels/t-selected".to_owned();
                let fate = Fate::Placed("NodeSet", pointer, json!("x"));
                self.add(&steps("spec.template.metadata.labels.t-selected"), json!("x"), &fate);
                self.add(&steps("spec.selector.matchLabels.t-selected"), json!("x"), &fate);
            }
            1 => self.add(&steps("spec.selector.matchLabels.t-none"), json!("x"), &Fate::Lost),
            _ => {}
        }
    }

    /// Bounds for cluster-autoscaler: both, or none.
    fn bounds(&mut self) {
        let of = |min: &str, max: &str| (Some(json!(min)), Some(json!(max)));
        let (bounds, is_good) = match self.choose(6) {
            0 => (of("1", "12"), true),
            1 => (of("0", "1"), true),
            2 => (of("3", "2"), false),
            3 => ((Some(json!("1")), None), false),
            4 => (of("-1", "x"), false),
            _ => ((None, None), false),
        };
        let prefix = ["cluster.k8s.io", "machine.openshift.io"][self.choose(2)];
        for (name, field, bound) in [("min", "minReplicas", bounds.0), ("max", "maxReplicas", bounds.1)] {
            let Some(bound) = bound else { continue };
            let key = format!("{prefix}/cluster-api-autoscaler-node-group-{name}-size");
            let number = bound.as_str().and_then(|text| text.parse::<u64>().ok());
            let fate = match number.filter(|_| is_good) {
                Some(number) => Fate::Placed("NodeSet", format!("/spec/autoscaling/{field}"), json!(number)),
                None => Fate::Lost,
            };
            self.add(&[steps("metadata.annotations"), vec![key]].concat(), bound, &fate);
        }
    }

    pub(super) fn machine(&mut self, machine: &str, metadata: &str) {
        let bad = [
            ("kube-node.io/x", json!("x")),
            ("node-role.kubernetes.io/worker", json!("")),
            ("b", json!(3)),
            ("e", json!(null)),
        ];
        self.texts(&format!("{machine}.metadata.labels"), "/spec/template/labels", "n-", &bad);
        self.texts(&format!("{metadata}.labels"), "/spec/template/labels", "t-", &bad);
        let bad = [
            ("machine.openshift.io/x", json!("x")),
            ("kube-node.io/x", json!("x")),
            ("scheduler.alpha.kubernetes.io/taints", json!("x")),
            ("b", json!(1)),
            ("c", json!({"d": "e"})),
        ];
        self.texts(&format!("{machine}.metadata.annotations"), "/spec/template/annotations", "n-", &bad);
        self.texts(&format!("{metadata}.annotations"), "/spec/template/annotations", "t-", &bad);
        if self.choose(3) == 0 {
            // The label of the Node wins over that of the Machine.
            let (node, machine_label) =
                (format!("{machine}.metadata.labels.both"), format!("{metadata}.labels.both"));
            let fate = Fate::Placed("NodeSet", "/spec/template/labels/both".to_owned(), json!("node"));
            self.add(&steps(&node), json!("node"), &fate);
            self.add(&steps(&machine_label), json!("machine"), &Fate::Lost);
        }
        self.metadata(&format!("{machine}.metadata"));
        let versions = [(json!("1.11.3"), json!("v1.11.3")), (json!("v1.36.3"), json!("v1.36.3"))];
        let place = ("NodeClass", "/spec/provisioning/kubelet/version");
        self.field(&format!("{machine}.versions.kubelet"), place, &versions, &[json!("latest"), json!(1)]);
        let mut placed = 0;
        for at in 0..self.choose(4) {
            let path = [steps(machine), vec!["taints".to_owned(), at.to_string()]].concat();
            let field = |field: &str| [path.clone(), vec![field.to_owned()]].concat();
            let good = json!({"key": format!("example.com/{at}"), "value": "x", "effect": "NoSchedule"});
            let bad = [
                json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}),
                json!({"key": "kube-node.io/uninitialized", "effect": "NoExecute"}),
                json!({"key": "a"}),
                json!({"effect": "NoSchedule"}),
                json!({"key": "a", "value": 1, "effect": "NoSchedule"}),
                json!({"key": "a b", "value": "x", "effect": "NoSchedule"}),
                json!({"key": "a", "value": "c d", "effect": "NoSchedule"}),
                json!({"key": "a", "value": {"b": 1}, "effect": "NoSchedule"}),
                json!("a"),
            ];
            match self.choose(bad.len() + 3) {
                choice if choice < bad.len() => self.add(&path, bad[choice].clone(), &Fate::Lost),
                choice => {
                    for (name, value) in good.as_object().unwrap() {
                        let pointer = format!("/spec/template/taints/{placed}/{name}");
                        self.add(
                            &field(name),
                            value.clone(),
                            &Fate::Placed("NodeSet", pointer, value.clone()),
                        );
                    }
                    if choice == bad.len() {
                        self.add(&field("timeAdded"), json!("2019-05-29T10:00:00Z"), &Fate::Lost);
                    }
                    placed += 1;
                }
            }
        }
    }

    pub(super) fn config(&mut self, config: &str) {
        let path = |field: &str| steps(&format!("{config}.{field}")).join(".");
        let place = ("NodeClass", "/spec/capacity/cpu");
        let cores = [(json!(4), json!("4")), (json!("500m"), json!("500m"))];
        self.field(
            &path("numCores"),
            place,
            &cores,
            &[json!(0), json!("four"), json!(true), json!({"a": {}}), json!([4]), json!("010")],
        );
        let place = ("NodeClass", "/spec/capacity/memory");
        let memory = [(json!("16Gi"), json!("16Gi")), (json!(1_024), json!("1024"))];
        self.field(&path("memoryCapacity"), place, &memory, &[json!("16GB"), json!(-1), json!("100Ei")]);
        let durations = Self::same(&[json!("5s"), json!("1m30s"), json!("90s")]);
        let no_durations = [json!(30), json!("1d"), json!(true)];
        self.field(
            &path("deletionTimeout"),
            ("NodeClass", "/spec/deletionTimeout"),
            &durations,
            &no_durations,
        );
        let images =
            Self::same(&[json!("r:5000/kubemark:v1.36.3"), json!(format!("a/b@sha256:{}", "0".repeat(64)))]);
        let bad = [json!(7), json!(["a"]), json!("Registry/Kubemark:v1.36.3")];
        self.field(&path("image"), ("NodeClass", "/spec/kubemark/image"), &images, &bad);
        self.failures(&path);
    }

    /// The fault injection is placed as a whole, or not at all.
    fn failures(&mut self, path: &impl Fn(&str) -> String) {
        let [unhealthy, healthy] = [(); 2].map(|()| {
            [None, Some(json!("5s")), Some(json!(5)), Some(json!({"seconds": 5}))][self.choose(4)].clone()
        });
        let [periodically, after] = [(); 2].map(|()| {
            [None, Some(json!(true)), Some(json!(false)), Some(json!("true"))][self.choose(4)].clone()
        });
        let is_duration = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_string);
        let is_flag = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_boolean);
        let is_valid =
            is_duration(&unhealthy) && is_duration(&healthy) && is_flag(&periodically) && is_flag(&after);
        let is_true = |value: &Option<Value>| *value == Some(json!(true));
        let (is_periodic, is_after) = (is_true(&periodically), is_true(&after));
        let is_placed = is_valid && is_periodic != is_after && unhealthy.is_some();
        let is_idle = is_valid && !is_periodic && !is_after;
        for (field, value) in [
            ("unhealthyDuration", unhealthy),
            ("healthyDuration", healthy),
            ("turnUnhealthyPeriodically", periodically),
            ("turnUnhealthyAfter", after),
        ] {
            let Some(value) = value else { continue };
            let fate = match field {
                _ if value == json!(false) => Fate::Implied,
                "healthyDuration" if is_placed && is_after => Fate::Noted,
                _ if is_placed => Fate::Placed("NodeClass", format!("/spec/failures/{field}"), value.clone()),
                _ if is_idle => Fate::Noted,
                _ => Fate::Lost,
            };
            self.add(&steps(&path(field)), value, &fate);
        }
    }
}
