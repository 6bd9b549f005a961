//! Parts of a pod's spec that name other objects: volumes, and variables of containers.
//!
//! Input: volumes and variables of the spec. Output: the [`Reference`]s without which the pod cannot start, and the
//! [`Variable`]s whose value the pod itself has. Invariant: of other objects only names are read.

use std::sync::{Arc, LazyLock};

use prost::Message;
use serde::Deserialize;

use super::{InternedStr, intern, interner::Interner, protobuf::messages};

/// Prefix of the token volume's name, which ends differently in each pod: see [`super::PodView::token`].
pub const TOKEN_VOLUME: &str = "kube-api-access-";
/// Interned references of all pods in this process.
static REFERENCES: LazyLock<Interner<[Reference]>> = LazyLock::new(Interner::default);
/// Limit on references kept per pod.
const MOST_REFERENCES: usize = 256;
/// Limit on variables kept per container, in bytes.
const MOST_VARIABLES: usize = 16 << 10;

/// An object that has to exist before a pod or a container of the pod starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Kind of the object.
    pub kind: ReferenceKind,
    /// Name of the object, in the namespace of the pod.
    pub name: Box<str>,
    /// Part of the pod that names the object.
    pub user: ReferenceUser,
}

/// Kind of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferenceKind {
    /// `Secret`.
    Secret,
    /// `ConfigMap`.
    ConfigMap,
    /// `PersistentVolumeClaim`.
    Claim,
}

/// Part of a pod that names an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReferenceUser {
    /// Volume of this name.
    Volume(InternedStr),
    /// Variables of the container of this name.
    Container(InternedStr),
}

/// Name and value of a variable whose value the pod itself has.
pub type Variable = (Box<str>, VariableValue);

/// Value of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VariableValue {
    /// Text, with references to other variables.
    Text(Box<str>),
    /// Path of a field of the pod, such as `status.podIP`.
    Field(Box<str>),
}

messages! {
    pub(super) struct Volume {
        pub(super) name: String = 1 (string);
        #[serde(flatten)]
        source: Option<VolumeSource> = 2 (message, optional);
    }

    struct VolumeSource {
        empty_dir: Option<EmptyDir> = 2 (message, optional);
        secret: Option<SecretVolume> = 6 (message, optional);
        persistent_volume_claim: Option<ClaimVolume> = 10 (message, optional);
        config_map: Option<Source> = 19 (message, optional);
        projected: Option<Projected> = 26 (message, optional);
    }

    struct EmptyDir {}

    struct SecretVolume {
        secret_name: String = 1 (string);
        optional: bool = 4 (bool);
    }

    struct ClaimVolume {
        claim_name: String = 1 (string);
    }

    struct Projected {
        sources: Vec<Projection> = 1 (message, repeated);
    }

    struct Projection {
        secret: Option<Source> = 1 (message, optional);
        config_map: Option<Source> = 3 (message, optional);
    }

    /// Source of a volume.
    struct Source {
        #[serde(flatten)]
        object: Option<NamedObject> = 1 (message, optional);
        optional: bool = 4 (bool);
    }

    struct NamedObject {
        name: String = 1 (string);
    }

    pub(super) struct ProtobufVariable {
        name: String = 1 (string);
        value: String = 2 (string);
        value_from: Option<ValueFrom> = 3 (message, optional);
    }

    struct ValueFrom {
        #[serde(rename = "fieldRef")]
        field: Option<Field> = 1 (message, optional);
        #[serde(rename = "configMapKeyRef")]
        config_map: Option<KeyRef> = 3 (message, optional);
        #[serde(rename = "secretKeyRef")]
        secret: Option<KeyRef> = 4 (message, optional);
    }

    struct Field {
        field_path: String = 2 (string);
    }

    /// Source of one variable.
    struct KeyRef {
        #[serde(flatten)]
        object: Option<NamedObject> = 1 (message, optional);
        optional: bool = 3 (bool);
    }

    /// Source of variables.
    pub(super) struct VariablesFrom {
        #[serde(rename = "configMapRef")]
        config_map: Option<VariablesRef> = 2 (message, optional);
        #[serde(rename = "secretRef")]
        secret: Option<VariablesRef> = 3 (message, optional);
    }

    struct VariablesRef {
        #[serde(flatten)]
        object: Option<NamedObject> = 1 (message, optional);
        optional: bool = 2 (bool);
    }
}

impl Volume {
    pub(super) fn is_empty_dir(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.empty_dir.is_some())
    }

    /// Objects that the volume needs. The token volume needs none: kube-controller-manager publishes its ConfigMap
    /// in every namespace.
    fn references(&self) -> Vec<Reference> {
        let Some(source) = self.source.as_ref().filter(|_| !self.name.starts_with(TOKEN_VOLUME)) else {
            return Vec::new();
        };
        let VolumeSource { secret, persistent_volume_claim, config_map, projected, .. } = source;
        let secret = secret.as_ref().filter(|secret| !secret.optional);
        let secret = secret.map(|secret| (ReferenceKind::Secret, &*secret.secret_name));
        let claim = persistent_volume_claim.as_ref();
        let claim = claim.map(|claim| (ReferenceKind::Claim, &*claim.claim_name));
        let config_map = named(ReferenceKind::ConfigMap, config_map.as_ref());
        let sources = projected.iter().flat_map(|projected| &projected.sources);
        let projected = sources.flat_map(|part| {
            let secret = named(ReferenceKind::Secret, part.secret.as_ref());
            secret.into_iter().chain(named(ReferenceKind::ConfigMap, part.config_map.as_ref()))
        });
        let all = secret.into_iter().chain(claim).chain(config_map).chain(projected);
        all.map(|(kind, name)| Reference {
            kind,
            name: name.into(),
            user: ReferenceUser::Volume(intern(&self.name)),
        })
        .collect()
    }
}

fn named(kind: ReferenceKind, source: Option<&Source>) -> Option<(ReferenceKind, &str)> {
    let source = source.filter(|source| !source.optional)?;
    Some((kind, name_of(source.object.as_ref())))
}

fn name_of(object: Option<&NamedObject>) -> &str {
    object.map(|object| &*object.name).unwrap_or_default()
}

/// Objects that variables of a container need, in the order in which a kubelet reads them.
fn of_variables<'a>(
    variables: &'a [ProtobufVariable],
    from: &'a [VariablesFrom],
) -> impl Iterator<Item = (ReferenceKind, &'a str)> {
    let (map, secret) = (ReferenceKind::ConfigMap, ReferenceKind::Secret);
    let from = from.iter().flat_map(move |from| [(map, &from.config_map), (secret, &from.secret)]);
    let from = from.filter_map(|(kind, source)| {
        let source = source.as_ref().filter(|source| !source.optional)?;
        Some((kind, name_of(source.object.as_ref())))
    });
    let keys = variables.iter().filter_map(|variable| variable.value_from.as_ref());
    let keys = keys.flat_map(move |from| [(map, &from.config_map), (secret, &from.secret)]);
    from.chain(keys.filter_map(|(kind, source)| {
        let source = source.as_ref().filter(|source| !source.optional)?;
        Some((kind, name_of(source.object.as_ref())))
    }))
}

/// A container: its name, its variables, their sources, and the names of the volumes that it mounts.
pub(super) type Use<'a> = (&'a str, &'a [ProtobufVariable], &'a [VariablesFrom], Vec<&'a str>);

/// Objects without which a pod cannot start: those of mounted volumes, then those of variables.
pub(super) fn references<'a>(
    volumes: &[Volume],
    containers: &(impl Iterator<Item = Use<'a>> + Clone),
) -> Arc<[Reference]> {
    let is_mounted = |volume: &&Volume| {
        containers.clone().any(|(_, _, _, mounts)| mounts.iter().any(|mount| *mount == volume.name))
    };
    let of_volumes = volumes.iter().filter(is_mounted).flat_map(Volume::references);
    let of_containers = containers.clone().flat_map(|(container, variables, from, _)| {
        of_variables(variables, from).map(move |(kind, name)| Reference {
            kind,
            name: name.into(),
            user: ReferenceUser::Container(intern(container)),
        })
    });
    let mut all: Vec<Reference> = Vec::new();
    for reference in of_volumes.chain(of_containers) {
        if !reference.name.is_empty() && all.len() < MOST_REFERENCES && !all.contains(&reference) {
            all.push(reference);
        }
    }
    REFERENCES.share(all)
}

/// Variables of a container whose value the pod itself has, within a limit.
pub(super) fn variables(variables: Vec<ProtobufVariable>) -> Box<[Variable]> {
    let mut left = MOST_VARIABLES;
    let own = variables.into_iter().filter_map(|ProtobufVariable { name, value, value_from }| {
        let value = match value_from {
            None => VariableValue::Text(value.into()),
            Some(from) => VariableValue::Field(from.field?.field_path.into()),
        };
        let (VariableValue::Text(text) | VariableValue::Field(text)) = &value;
        left = left.checked_sub(name.len() + text.len())?;
        Some((name.into(), value))
    });
    own.collect()
}
