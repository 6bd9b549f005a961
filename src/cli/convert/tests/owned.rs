//! Property: of a Machine beside its MachineSet, every field that only one of them has is named, and no other.

use proptest::{collection::vec, prelude::*};

use super::{
    cases::{Case, Fate, any_case, insert, leaves, shown, steps},
    *,
};

/// A Machine with a part of the template, and the paths that it lacks.
fn machine(set: &Case, kept: &[bool]) -> (Value, BTreeSet<String>) {
    let mut machine = json!({
        "apiVersion": set.value["apiVersion"],
        "kind": "Machine",
        "metadata": {"name": "owned", "ownerReferences": [{"kind": "MachineSet", "name": "case"}]},
    });
    let mut missing = BTreeSet::new();
    let mut kept = kept.iter().cycle();
    for (template, own) in [
        ("spec.template.metadata.labels", "metadata.labels"),
        ("spec.template.metadata.annotations", "metadata.annotations"),
        ("spec.template.spec", "spec"),
    ] {
        let from = steps(template);
        let value = &set.value[&from[0]][&from[1]][&from[2]];
        let value = from.get(3).map_or(value, |field| &value[field]);
        let mut all = Vec::new();
        leaves(value, &[], &mut all);
        for leaf in all.iter().filter(|leaf| !leaf.is_empty()) {
            let value = leaf.iter().fold(value, |value, step| match step.parse::<usize>() {
                Ok(at) => &value[at],
                Err(_) => &value[step],
            });
            let path = [steps(own), leaf.clone()].concat();
            // An item that is absent changes the paths of those behind it.
            let is_item = leaf.iter().any(|step| step.parse::<usize>().is_ok());
            if is_item || *kept.next().unwrap() {
                insert(&mut machine, &path, value.clone());
                continue;
            }
            let in_set = shown(&[steps(template), leaf.clone()].concat());
            let is_left_out =
                set.fates.iter().any(|(path, fate)| *path == in_set && matches!(fate, Fate::LeftOut));
            let defaults = [json!(null), json!(""), json!(false), json!(0), json!({}), json!([])];
            let is_default = defaults.contains(value) || *value == "kubemarkproviderconfig.k8s.io/v1alpha1";
            if !is_left_out && !is_default {
                missing.insert(shown(&path));
            }
        }
    }
    (machine, missing)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_field_that_only_the_owner_has_is_named(
        set in any_case().prop_filter("only a MachineSet owns Machines", |case| case.kind == "MachineSet"),
        kept in vec(any::<bool>(), 64),
        has_more in any::<bool>(),
    ) {
        let (mut machine, mut expected) = machine(&set, &kept);
        if has_more {
            machine["spec"]["versions"]["other"] = json!("x");
            expected.insert("spec.versions.other".to_owned());
        }
        let result = converted(None, "f.yaml", &format!("{}\n{machine}", set.value));
        let lines = result.lost.iter().filter_map(|line| line.strip_prefix("Machine owned: not converted: "));
        let named: BTreeSet<String> = lines.filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
        prop_assert_eq!(named, expected, "{:#}\n{:#}", set.value, machine);
        prop_assert_eq!(result.objects.len(), 2);
    }
}
