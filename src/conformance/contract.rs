//! Clauses of the contract with the numbers and words of docs/node-controllers.md; a test compares the two.

/// One clause of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    /// Number of the clause.
    pub(super) number: &'static str,
    /// Text of the clause.
    pub(super) text: &'static str,
}

macro_rules! contract {
    ($($name:ident $number:literal $text:literal)*) => {
        $(pub(super) const $name: Clause = Clause { number: $number, text: $text };)*
        /// All clauses in the order of the contract.
        pub(super) const ALL: &[Clause] = &[$($name),*];
    };
}

contract! {
    ACCEPTS "1.1" "It sets the condition `Accepted` of each NodeClass whose `spec.nodeController` is its name: `True` where it serves the class, `False` with a reason and a message where it cannot."
    FOLLOWS "1.2" "The condition's `observedGeneration` is the generation of the class that it speaks of, and follows changes."
    OTHER_CLASSES "1.3" "It writes nothing else of a class, and nothing of a class that names another controller."
    OTHER_NODES "2.1" "Its Nodes are those whose label `kube-node.io/node-controller` is its name, whoever made them; all others it leaves alone."
    NUMBER "2.2" "It makes no Nodes, deletes none and writes no NodeSet: how many there are is not its business."
    REST "2.3" "Of its Nodes it writes what this contract names; other labels, annotations, owners, taints and fields stay as they are."
    FINALIZER_FIRST "3.1" "A Node has the finalizer `kube-node.io/machine` before its machine exists; one that lacks it gets it first."
    REVISION "3.2" "A machine is made from the revision that its Node names, the ControllerRevision `<class>-<revision>` in the operator's namespace, never from the class as it is now."
    TROUBLE "3.3" "While a machine cannot be made, its Node's condition `kube-node.io/Machine` is `False`, with a reason and a message."
    ONE "3.4" "The UID of a Node has one machine, however often it is asked for."
    PROVIDER_ID "3.5" "`spec.providerID` is set before pods may come, to a value that no other Node has."
    ORPHANS "3.6" "A machine whose Node is gone is deleted, however the Node went."
    KUBELET "4.1" "The machine's kubelet takes the Node over under its name: its status, `Ready`, and a Lease in `kube-node-lease` that it renews."
    NO_EXECUTE "4.2" "The taint `kube-node.io/uninitialized` loses its effect `NoExecute` once a kubelet has posted (`status.nodeInfo.kubeletVersion`), not before."
    NO_SCHEDULE "4.3" "It loses `NoSchedule` once `Ready` is `True` and the Lease is fresh, not before."
    CORDON "5.1" "A drain begins with `spec.unschedulable`, once the Node's deletion was asked for, not before."
    EVICTIONS "5.2" "Pods leave through the Eviction API; pods of DaemonSets, mirror pods and finished pods stay and hold nothing up."
    SETTINGS "5.3" "`spec.drain` of the Node's NodeSet is kept: `timeout`, `deleteEmptyDirData`, `unmanagedPods`; and so is a pod's annotation `kube-node.io/do-not-evict`, until that timeout."
    BLOCKED "5.4" "While something holds a drain up, the Node's condition `kube-node.io/Drained` is `False`, with a reason, and a message that names the pod."
    LINGERS "5.5" "The machine works until no pod is left that has to leave, and until the class's `deletionTimeout` has passed since the Node's deletion."
    FINALIZER_LAST "5.6" "The finalizer goes when the machine does not exist any more, not before."
    LEAVES "5.7" "A Node that nothing holds up goes, also one that never had a machine."
    ROLLS "6.1" "A NodeSet of its class comes, rolls to another revision, and shrinks to nothing."
    RESTART "6.2" "A controller that is started anew finds its machines and goes on where it was."
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn the_page_says_the_same() {
        let page = include_str!("../../docs/node-controllers.md");
        let is_numbered = |number: &str| number.split('.').all(|part| part.parse::<u8>().is_ok());
        let of_page: Vec<(&str, &str)> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" | yes |")?.split_once(" | "))
            .filter(|(number, _)| is_numbered(number))
            .collect();
        let own: Vec<(&str, &str)> = ALL.iter().map(|clause| (clause.number, clause.text)).collect();
        assert_eq!(of_page, own);
    }
}
