//! Types that all kinds share, in the encodings of the API server. These types, and those of each kind, are
//! decoded from protobuf by the watches and from JSON by tests and from typed objects; fields that nobody
//! reads are skipped in both. Tags are those of Kubernetes' `generated.proto`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Taint,
    apimachinery::pkg::apis::meta::v1::{self, OwnerReference},
};
use prost::Message;
use serde::Deserialize;

/// Declares messages by their fields, as `generated.proto` does: `field: Type = tag (attributes of prost);`.
macro_rules! messages {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty = $tag:tt ($($kind:tt)+);)*
    })*) => {$(
        #[derive(Clone, PartialEq, Eq, Hash, Message, Deserialize)]
        #[prost(prost_path = "crate::lossy")]
        #[serde(rename_all = "camelCase", default)]
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* #[prost($($kind)+, tag = $tag)] $field_vis $field: $type,)*
        }
    )*};
}
pub(super) use messages;

messages! {
    /// meta/v1 `ObjectMeta`.
    pub(super) struct Metadata {
        pub name: String = 1 (string);
        pub namespace: String = 3 (string);
        pub uid: String = 5 (string);
        pub resource_version: String = 6 (string);
        pub generation: Option<i64> = 7 (int64, optional);
        pub creation_timestamp: Option<Time> = 8 (message, optional);
        pub deletion_timestamp: Option<Time> = 9 (message, optional);
        pub deletion_grace_period_seconds: Option<i64> = 10 (int64, optional);
        pub labels: BTreeMap<String, String> = 11 (btree_map = "string, string");
        pub annotations: BTreeMap<String, String> = 12 (btree_map = "string, string");
        pub owner_references: Vec<Owner> = 13 (message, repeated);
        pub finalizers: Vec<String> = 14 (string, repeated);
        pub managed_fields: Vec<ManagedFields> = 17 (message, repeated);
    }

    /// meta/v1 `OwnerReference`.
    pub(super) struct Owner {
        pub kind: String = 1 (string);
        pub name: String = 3 (string);
        pub uid: String = 4 (string);
        pub api_version: String = 5 (string);
        pub controller: Option<bool> = 6 (bool, optional);
        pub block_owner_deletion: Option<bool> = 7 (bool, optional);
    }

    /// meta/v1 `ManagedFieldsEntry`.
    pub(super) struct ManagedFields {
        pub operation: String = 2 (string);
    }

    /// core/v1 `Taint`.
    pub(super) struct ProtobufTaint {
        key: String = 1 (string);
        value: Option<String> = 2 (string, optional);
        effect: String = 3 (string);
        time_added: Option<Time> = 4 (message, optional);
    }

    /// core/v1 `NodeCondition` and `PodCondition`, which have the same tags.
    pub(super) struct ProtobufCondition {
        pub r#type: String = 1 (string);
        pub status: String = 2 (string);
        pub last_transition_time: Option<Time> = 4 (message, optional);
        pub reason: String = 5 (string);
        pub message: String = 6 (string);
        /// Of pods only.
        pub observed_generation: Option<i64> = 7 (int64, optional);
    }

    /// meta/v1 `Time`.
    #[derive(Copy)]
    #[serde(from = "Timestamp")]
    pub(super) struct Time {
        seconds: i64 = 1 (int64);
    }

    /// resource `Quantity`.
    #[serde(transparent)]
    pub struct Amount {
        /// Text, such as `16Gi`.
        pub text: String = 1 (string);
    }
}

impl From<Owner> for OwnerReference {
    fn from(Owner { kind, name, uid, api_version, controller, block_owner_deletion }: Owner) -> Self {
        Self { kind, name, uid, api_version, controller, block_owner_deletion }
    }
}

impl From<ProtobufTaint> for Taint {
    fn from(ProtobufTaint { key, value, effect, time_added }: ProtobufTaint) -> Self {
        // Protobuf does not distinguish an unset value from an empty one, and JSON has no empty one.
        let value = value.filter(|value| !value.is_empty());
        Self { key, value, effect, time_added: at(time_added).map(v1::Time) }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.as_second() }
    }
}

/// Converts a time. None is encoded as zero (apimachinery, `time_proto.go`).
pub(super) fn at(time: Option<Time>) -> Option<Timestamp> {
    let Time { seconds } = time.filter(|time| time.seconds != 0)?;
    Timestamp::from_second(seconds).ok()
}
