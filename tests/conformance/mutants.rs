//! The example, broken in one place each, and the clause that is broken by that.

use super::example::{Edit, Example};

/// A broken example.
pub struct Mutant {
    /// In one word.
    pub name: &'static str,
    /// The clause that has to fail.
    pub clause: &'static str,
    edits: &'static [Edit],
}

impl Mutant {
    /// What is said of it.
    pub fn run(&self) -> String {
        Example::start(self.name, self.edits).conformance()
    }
}

pub const ALL: &[Mutant] = &[
    Mutant {
        name: "opens-too-early",
        clause: "4.3",
        edits: &[(
            "node.go",
            "ready := condition(node, corev1.NodeReady) == corev1.ConditionTrue && c.leaseIsFresh(ctx, node.Name)",
            "ready := true",
        )],
    },
    Mutant {
        name: "strips-taints",
        clause: "2.3",
        edits: &[("node.go", "return taint.Key == uninitialized && goes", "return goes")],
    },
    Mutant {
        name: "forgets-the-finalizer",
        clause: "3.1",
        edits: &[(
            "node.go",
            "if controllerutil.AddFinalizer(changed, finalizer) {",
            "if changed.Labels == nil {",
        )],
    },
    Mutant {
        name: "guesses-revisions",
        clause: "3.2",
        edits: &[(
            "node.go",
            "return revision.Data.Raw, err",
            "if err != nil {\nreturn []byte(`{}`), nil\n}\nreturn revision.Data.Raw, nil",
        )],
    },
    Mutant {
        name: "does-not-drain",
        clause: "5.2",
        edits: &[(
            "node.go",
            "if drained, err := c.drain(ctx, node); err != nil || !drained {",
            "if err := ctx.Err(); err != nil {",
        )],
    },
    Mutant {
        name: "does-not-cordon",
        clause: "5.1",
        edits: &[("node.go", "if !node.Spec.Unschedulable {", "if node.Labels == nil {")],
    },
    Mutant {
        name: "evicts-everything",
        clause: "5.3",
        edits: &[(
            "drain.go",
            "obstacle, err := obstacle(set, &pod), error(nil)",
            "obstacle, err := \"\", error(nil)",
        )],
    },
    Mutant {
        name: "does-not-linger",
        clause: "5.5",
        edits: &[("node.go", "left > 0 {", "left > time.Hour {")],
    },
    Mutant {
        name: "leaves-machines-behind",
        clause: "5.6",
        edits: &[
            (
                "node.go",
                "if err := c.machines.stop(node.UID); err != nil {",
                "if err := ctx.Err(); err != nil {",
            ),
            ("node.go", "return reconcile.Result{}, c.sweep(ctx)", "return reconcile.Result{}, nil"),
        ],
    },
    Mutant {
        name: "forgets-machines",
        clause: "6.2",
        edits: &[(
            "main.go",
            "if err := os.MkdirAll(string(machines), 0o700); err != nil {",
            "os.RemoveAll(string(machines))\nif err := os.MkdirAll(string(machines), 0o700); err != nil {",
        )],
    },
];
