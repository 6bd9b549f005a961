use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::Resources;
use kube_node_cache::{NodeSelectorRequirement, Qos, ResourceList};
use proptest::prelude::*;

use super::*;

fn resources(rows: &[(&str, &str)]) -> Resources {
    rows.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
}

fn machine_of(rows: &[(&str, &str)]) -> Allocatable {
    Allocatable::of(&resources(rows))
}

fn requests(rows: &[(&str, &str)]) -> PodView {
    let amounts = resources(rows);
    let requests = ResourceList::of(amounts.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())));
    PodView {
        uid: "pod".into(),
        spec: PodSpecView { requests, ..PodSpecView::default() }.into(),
        ..PodView::default()
    }
}

fn admitted_pod(name: &str, qos: Qos, pod: PodView) -> AdmittedPod {
    let mut pod = PodView { uid: name.into(), ..pod };
    pod.status.qos = qos;
    AdmittedPod { pod: Arc::new(pod), is_preempted: false }
}

fn admitted(pod: &PodView, allocatable: &Allocatable, others: &[AdmittedPod]) -> AdmitResult {
    admit(pod, NodeInfo { labels: &LabelMap::default(), taints: &[], allocatable }, others)
}

fn refusal(result: AdmitResult) -> (String, String) {
    match result {
        AdmitResult::Rejected { reason, message, .. } => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_resource_has_its_reason() {
    let small = machine_of(&[
        ("cpu", "4"),
        ("memory", "1Gi"),
        ("ephemeral-storage", "1Gi"),
        ("pods", "1"),
        ("example.com/gpu", "1"),
    ]);
    for (amount, reason, message) in [
        (("cpu", "4100m"), "OutOfcpu", "cpu, requested: 4100, used: 0, capacity: 4000"),
        (("memory", "2Gi"), "OutOfmemory", "memory, requested: 2147483648, used: 0, capacity: 1073741824"),
        (("ephemeral-storage", "2Gi"), "OutOfephemeral-storage", "requested: 2147483648"),
        (
            ("example.com/gpu", "2"),
            "OutOfexample.com/gpu",
            "example.com/gpu, requested: 2, used: 0, capacity: 1",
        ),
        (("hugepages-2Mi", "2Mi"), "OutOfhugepages-2Mi", "capacity: 0"),
    ] {
        let (found, text) = refusal(admitted(&requests(&[amount]), &small, &[]));
        assert_eq!(found, reason);
        assert!(text.starts_with("Node didn't have enough resource: ") && text.contains(message), "{text}");
    }
    let full = [admitted_pod("other", Qos::BestEffort, requests(&[]))];
    let (reason, message) = refusal(admitted(&requests(&[]), &small, &full));
    assert_eq!(
        (reason.as_str(), message.ends_with("pods, requested: 1, used: 1, capacity: 1")),
        ("OutOfpods", true)
    );
    assert_eq!(admitted(&requests(&[("cpu", "4")]), &small, &[]), AdmitResult::Admitted);
}

#[test]
fn an_extended_resource_that_the_machine_lacks_is_not_its_business() {
    let machine = machine_of(&[("pods", "9")]);
    assert_eq!(admitted(&requests(&[("example.com/claim", "1")]), &machine, &[]), AdmitResult::Admitted);
}

#[test]
fn a_node_has_to_be_as_the_pod_wants_it() {
    let labels = LabelMap::from([("zone", "a")]);
    let taint = |effect: &str| Taint { key: "k".to_owned(), effect: effect.to_owned(), ..Taint::default() };
    let allocatable = machine_of(&[("pods", "9")]);
    let result = |spec: PodSpecView, taints: &[Taint]| {
        let pod = PodView { spec: spec.into(), ..PodView::default() };
        admit(&pod, NodeInfo { labels: &labels, taints, allocatable: &allocatable }, &[])
    };
    let selects = |zone: &str| PodSpecView {
        node_selector: [("zone".into(), zone.into())].into(),
        ..PodSpecView::default()
    };
    assert_eq!(result(selects("a"), &[]), AdmitResult::Admitted);
    let (reason, message) = refusal(result(selects("b"), &[]));
    assert_eq!(reason, "NodeAffinity");
    assert_eq!(message, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector");

    let term = |possible, zone: &str| {
        let requirement = NodeSelectorRequirement {
            key: "zone".into(),
            operator: "In".into(),
            values: [zone.into()].into(),
        };
        NodeSelectorTerm { possible, labels: [requirement].into() }
    };
    let wants =
        |terms: &[NodeSelectorTerm]| PodSpecView { node_terms: Some(terms.into()), ..PodSpecView::default() };
    assert_eq!(result(wants(&[term(true, "b"), term(true, "a")]), &[]), AdmitResult::Admitted, "one of them");
    assert_eq!(
        refusal(result(wants(&[term(false, "a")]), &[])).0,
        "NodeAffinity",
        "another Node by its name"
    );
    assert_eq!(refusal(result(wants(&[]), &[])).0, "NodeAffinity");

    let tolerates = |key: &str, operator: &str| {
        let toleration = Toleration { key: key.into(), operator: operator.into(), ..Toleration::default() };
        PodSpecView { tolerations: [toleration].into(), ..PodSpecView::default() }
    };
    assert_eq!(result(tolerates("x", "Exists"), &[taint("NoSchedule")]), AdmitResult::Admitted);
    assert_eq!(refusal(result(tolerates("x", "Exists"), &[taint("NoExecute")])).0, "TaintToleration");
    for (key, operator) in [("k", ""), ("k", "Exists"), ("", "Exists")] {
        assert_eq!(
            result(tolerates(key, operator), &[taint("NoExecute")]),
            AdmitResult::Admitted,
            "{key} {operator}"
        );
    }
}

fn critical(rows: &[(&str, &str)]) -> PodView {
    PodView { priority: 2_000_001_000, ..requests(rows) }
}

#[test]
fn a_critical_pod_takes_the_place_of_the_least_and_waits_for_it() {
    let machine = machine_of(&[("cpu", "4"), ("memory", "4Gi"), ("pods", "9")]);
    let mut others = vec![
        admitted_pod("guaranteed", Qos::Guaranteed, requests(&[("cpu", "2")])),
        admitted_pod("large", Qos::Burstable, requests(&[("cpu", "1500m"), ("memory", "1Gi")])),
        admitted_pod("small", Qos::Burstable, requests(&[("cpu", "500m")])),
    ];
    let pod = critical(&[("cpu", "400m")]);
    assert_eq!(admitted(&pod, &machine, &others), AdmitResult::Preempts(vec!["small".into()]));
    others[2].is_preempted = true;
    assert_eq!(admitted(&pod, &machine, &others), AdmitResult::Waits);
    let large = critical(&[("cpu", "3")]);
    others[2].is_preempted = false;
    let all = AdmitResult::Preempts(vec!["large".into(), "guaranteed".into()]);
    assert_eq!(admitted(&large, &machine, &others), all);
    let (reason, message) = refusal(admitted(&critical(&[("cpu", "5")]), &machine, &others));
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert!(
        message.ends_with("no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"),
        "{message}"
    );
    let usual = refusal(admitted(&requests(&[("cpu", "3")]), &machine, &others));
    assert_eq!(usual.0, "OutOfcpu", "others are not made room for");
}

proptest! {
    /// An admitted pod fits, a rejected one does not, and victims free enough; no victim is critical.
    #[test]
    fn room_is_counted(
        capacity in 0_i64..20,
        own in 0_i64..10,
        is_critical in any::<bool>(),
        others in prop::collection::vec((0_i64..8, 0_u8..3, any::<bool>()), 0..6),
    ) {
        let machine = machine_of(&[("cpu", &capacity.to_string()), ("pods", "100")]);
        let cpu = |amount: i64| requests(&[("cpu", &amount.to_string())]);
        let admitted_pods: Vec<AdmittedPod> = others.iter().enumerate().map(|(at, (amount, qos, critical))| {
            let qos = [Qos::BestEffort, Qos::Burstable, Qos::Guaranteed][usize::from(*qos)];
            let priority = if *critical { 2_000_001_000 } else { 0 };
            admitted_pod(&at.to_string(), qos, PodView { priority, ..cpu(*amount) })
        }).collect();
        let pod = PodView { priority: if is_critical { 2_000_001_000 } else { 0 }, ..cpu(own) };
        let used: i64 = others.iter().map(|(amount, ..)| amount).sum();
        let fits = own == 0 || own + used <= capacity;
        match admitted(&pod, &machine, &admitted_pods) {
            AdmitResult::Admitted => prop_assert!(fits),
            AdmitResult::Rejected { .. } => prop_assert!(!fits),
            AdmitResult::Preempts(victims) => {
                let of = |uid: &Arc<str>| others[uid.parse::<usize>().unwrap()];
                let freed: i64 = victims.iter().map(|uid| of(uid).0).sum();
                prop_assert!(is_critical && !fits && own + used - freed <= capacity);
                prop_assert!(victims.iter().all(|uid| !of(uid).2), "nobody critical");
                for spared in 0..victims.len() {
                    let without = freed - of(&victims[spared]).0;
                    prop_assert!(own + used - without > capacity || victims.len() > 1, "nobody in vain");
                }
            }
            AdmitResult::Waits => prop_assert!(false, "nobody leaves"),
        }
    }
}
