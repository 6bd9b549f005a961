//! Kinds that the in-memory API server serves, with the rules of their storage (registry/*/strategy.go of Kubernetes).

/// Rules of one kind.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "a kind has the name of a kind")]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// Plural name, as in paths.
    pub plural: &'static str,
    /// Name of the kind.
    pub kind: &'static str,
    /// True if objects have a namespace.
    pub namespaced: bool,
    /// True if the status is written by a subresource alone.
    pub status: bool,
    /// True if a write of the status leaves the metadata as they are.
    pub status_keeps_metadata: bool,
    /// True if `metadata.generation` counts the changes of the spec.
    pub generation: bool,
    /// True if an update needs no resourceVersion.
    pub unconditional: bool,
    /// True if a PUT of an object that does not exist creates it.
    pub create_on_update: bool,
    /// True if a deletion answers with the object.
    pub returns_deleted: bool,
}

const BASE: Kind = Kind {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    namespaced: true,
    status: false,
    status_keeps_metadata: false,
    generation: false,
    unconditional: true,
    create_on_update: false,
    returns_deleted: false,
};
const CUSTOM: Kind = Kind {
    group: kube_node_api::names::GROUP,
    version: "v1alpha1",
    namespaced: false,
    status: true,
    status_keeps_metadata: true,
    generation: true,
    unconditional: false,
    ..BASE
};

/// All kinds.
pub const KINDS: [Kind; 19] = [
    Kind { plural: "nodes", kind: "Node", namespaced: false, status: true, ..BASE },
    Kind { plural: "pods", kind: "Pod", status: true, generation: true, returns_deleted: true, ..BASE },
    Kind { plural: "namespaces", kind: "Namespace", namespaced: false, status: true, ..BASE },
    Kind { plural: "secrets", kind: "Secret", ..BASE },
    Kind { plural: "configmaps", kind: "ConfigMap", ..BASE },
    Kind { plural: "serviceaccounts", kind: "ServiceAccount", returns_deleted: true, ..BASE },
    Kind {
        plural: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        status: true,
        returns_deleted: true,
        ..BASE
    },
    Kind { plural: "persistentvolumes", kind: "PersistentVolume", namespaced: false, status: true, ..BASE },
    Kind { plural: "events", kind: "Event", create_on_update: true, ..BASE },
    Kind { group: "events.k8s.io", plural: "events", kind: "Event", create_on_update: true, ..BASE },
    Kind {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        unconditional: false,
        create_on_update: true,
        ..BASE
    },
    Kind { group: "apps", plural: "controllerrevisions", kind: "ControllerRevision", ..BASE },
    Kind {
        group: "storage.k8s.io",
        plural: "volumeattachments",
        kind: "VolumeAttachment",
        namespaced: false,
        status: true,
        status_keeps_metadata: true,
        unconditional: false,
        returns_deleted: true,
        ..BASE
    },
    Kind {
        group: "certificates.k8s.io",
        plural: "certificatesigningrequests",
        kind: "CertificateSigningRequest",
        namespaced: false,
        status: true,
        ..BASE
    },
    Kind {
        group: "policy",
        plural: "poddisruptionbudgets",
        kind: "PodDisruptionBudget",
        status: true,
        generation: true,
        unconditional: false,
        ..BASE
    },
    Kind { plural: "nodesets", kind: "NodeSet", ..CUSTOM },
    Kind { plural: "nodeclasses", kind: "NodeClass", ..CUSTOM },
    Kind { group: "storage.k8s.io", plural: "csinodes", kind: "CSINode", namespaced: false, ..BASE },
    Kind { group: "storage.k8s.io", plural: "csidrivers", kind: "CSIDriver", namespaced: false, ..BASE },
];

impl Kind {
    /// Position in [`KINDS`] of a kind, by the group and the plural in a path.
    pub fn find(group: &str, plural: &str) -> Option<usize> {
        KINDS.iter().position(|kind| kind.group == group && kind.plural == plural)
    }

    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// True for our own kinds.
    pub fn is_custom(&self) -> bool {
        self.group == kube_node_api::names::GROUP
    }
}
