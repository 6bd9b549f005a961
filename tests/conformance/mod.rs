//! The contract of docs/node-controllers.md, by `kube-node conformance`: the example keeps it, our own nodes keep it, and an
//! example that was broken in one place is told to break the clause of that place.
//!
//! The check itself is what is tested by the broken ones: a clause that nothing can break is no clause.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod example;
mod mutants;

use crate::CLUSTER;
use std::thread;

use example::{Example, conformance};

/// Broken examples that are built and checked at once: their links take much memory and both processors.
const AT_ONCE: usize = 4;

#[test]
fn the_example_keeps_the_contract() {
    let example = Example::start("example", &[]);
    let said = example.conformance();
    assert!(said.contains(" 0 broken, 0 not seen"), "{said}");
    example.left_nothing();
}

#[test]
fn our_own_nodes_keep_the_contract() {
    let class = CLUSTER.dir.join("own-class.yaml");
    std::fs::write(
        &class,
        "apiVersion: kube-node.io/v1alpha1\nkind: NodeClass\nmetadata: {name: own}\n\
         spec: {nodeController: hollow, capacity: {cpu: \"4\", memory: 16Gi, pods: \"110\"}}\n",
    )
    .unwrap();
    // Hollow machines are tasks of the operator: nobody but it can list them.
    let said = conformance(&["--class", class.to_str().unwrap()]);
    assert!(said.contains(" 0 broken, 4 not seen"), "{said}");
}

#[test]
fn a_broken_example_breaks_the_clause_of_what_is_broken() {
    let mut wrong = Vec::new();
    for some in mutants::ALL.chunks(AT_ONCE) {
        let runs: Vec<_> = some.iter().map(|mutant| (mutant, thread::spawn(|| mutant.run()))).collect();
        for (mutant, run) in runs {
            let said = run.join().unwrap();
            if !said.contains(&format!("\nFAILED  {}", mutant.clause)) {
                wrong.push(format!("{} should break {}:\n{said}", mutant.name, mutant.clause));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_class_that_nobody_serves_is_not_waited_for_for_ever() {
    let class = CLUSTER.dir.join("unserved-class.yaml");
    std::fs::write(
        &class,
        "apiVersion: kube-node.io/v1alpha1\nkind: NodeClass\nmetadata: {name: unserved}\n\
         spec: {nodeController: unserved.example.com}\n",
    )
    .unwrap();
    let said = conformance(&["--class", class.to_str().unwrap(), "--timeout", "3s"]);
    assert!(said.contains("\nFAILED  1.1") && said.contains("0 clauses kept, 1 broken"), "{said}");
    let classes = CLUSTER.kubectl(&["get", "nodeclasses", "-o", "name"]);
    assert!(!classes.contains("unserved"), "{classes}");
}
