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
use serde::{Deserialize, Deserializer};

/// meta/v1 `ObjectMeta`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(string, tag = "6")]
    pub resource_version: String,
    #[prost(int64, optional, tag = "7")]
    pub generation: Option<i64>,
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    pub deletion_grace_period_seconds: Option<i64>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub owner_references: Vec<Owner>,
    #[prost(string, repeated, tag = "14")]
    pub finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    pub managed_fields: Vec<ManagedFields>,
}

/// meta/v1 `OwnerReference`.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub uid: String,
    #[prost(string, tag = "5")]
    pub api_version: String,
    #[prost(bool, optional, tag = "6")]
    pub controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub block_owner_deletion: Option<bool>,
}

impl From<Owner> for OwnerReference {
    fn from(owner: Owner) -> Self {
        let Owner { kind, name, uid, api_version, controller, block_owner_deletion } = owner;
        Self { kind, name, uid, api_version, controller, block_owner_deletion }
    }
}

/// meta/v1 `ManagedFieldsEntry`.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(default)]
pub(super) struct ManagedFields {
    #[prost(string, tag = "2")]
    pub operation: String,
}

/// core/v1 `Taint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProtobufTaint {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
    #[prost(string, tag = "3")]
    effect: String,
    #[prost(message, optional, tag = "4")]
    time_added: Option<Time>,
}

impl From<ProtobufTaint> for Taint {
    fn from(ProtobufTaint { key, value, effect, time_added }: ProtobufTaint) -> Self {
        // Protobuf does not distinguish an unset value from an empty one, and JSON has no empty one.
        let value = value.filter(|value| !value.is_empty());
        Self { key, value, effect, time_added: at(time_added).map(v1::Time) }
    }
}

/// meta/v1 `Time`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(prost_path = "crate::lossy")]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(|time| Self { seconds: time.as_second() })
    }
}

/// Converts a time. None is encoded as zero (apimachinery, `time_proto.go`).
pub(super) fn at(time: Option<Time>) -> Option<Timestamp> {
    let Time { seconds } = time.filter(|time| time.seconds != 0)?;
    Timestamp::from_second(seconds).ok()
}

/// core/v1 `NodeCondition` and `PodCondition`, which have the same tags.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProtobufCondition {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(string, tag = "2")]
    pub status: String,
    #[prost(message, optional, tag = "4")]
    pub last_transition_time: Option<Time>,
    #[prost(string, tag = "5")]
    pub reason: String,
    #[prost(string, tag = "6")]
    pub message: String,
    /// Of pods only.
    #[prost(int64, optional, tag = "7")]
    pub observed_generation: Option<i64>,
}

/// resource `Quantity`.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[prost(prost_path = "crate::lossy")]
#[serde(transparent)]
pub(super) struct Amount {
    #[prost(string, tag = "1")]
    pub text: String,
}
