//! Mounts of a machine's pods, as seen by its pod watch: the Secrets and `ConfigMaps` that a kubelet watches
//! one by one, and the tokens that it requests.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use http::Method;
use k8s_pb::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{LocalObjectReference, Pod, ServiceAccountTokenProjection},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_ext::{
    transport::{Body, envelope},
    watch::WatchEvent,
};
use prost::Message;
use tokio::time::Instant;

use super::watches::Object;
use crate::request::Request;

/// Fraction of its lifetime after which a token is requested again (`pkg/kubelet/token`).
const RENEWED_AFTER: f64 = 0.8;
/// Maximum age of a token.
const OLDEST: Duration = Duration::from_hours(24);

/// Mounts of a machine's pods.
#[derive(Default)]
pub struct Mounts {
    /// By pod UID; pods without mounts of these kinds have no entry.
    pods: HashMap<Box<str>, Mounted>,
    /// UIDs seen in the initial list under way; None outside of one.
    listed: Option<HashSet<Box<str>>>,
}

#[derive(Default)]
struct Mounted {
    objects: Vec<Object>,
    tokens: Vec<Token>,
}

/// A token that a pod mounts.
struct Token {
    /// Call of the `TokenRequest` API.
    call: Request,
    life: Duration,
    due: Instant,
}

impl Mounts {
    /// Handles an event of the pod watch.
    pub fn handle(&mut self, event: &WatchEvent<'_>, now: Instant) {
        match event {
            WatchEvent::InitialList => self.listed = Some(HashSet::new()),
            WatchEvent::Complete => {
                if let Some(listed) = self.listed.take() {
                    self.pods.retain(|uid, _| listed.contains(uid));
                }
            }
            WatchEvent::Object { raw, deleted } => {
                let Ok(pod) = Pod::decode(*raw) else { return };
                self.update(&pod, *deleted, now);
            }
        }
    }

    /// Secrets and `ConfigMaps` to watch, each once.
    pub fn objects(&self) -> BTreeSet<Object> {
        self.pods.values().flat_map(|pod| &pod.objects).cloned().collect()
    }

    /// Calls due at `now`; queues the next call of each token.
    pub fn due(&mut self, now: Instant) -> Vec<Request> {
        let tokens = self.pods.values_mut().flat_map(|pod| &mut pod.tokens);
        let due = tokens.filter(|token| token.due <= now).map(|token| {
            token.due = now + token.life.mul_f64(RENEWED_AFTER).min(OLDEST);
            token.call.clone()
        });
        due.collect()
    }

    /// Due time of the next call.
    pub fn next_due(&self) -> Option<Instant> {
        self.pods.values().flat_map(|pod| &pod.tokens).map(|token| token.due).min()
    }

    fn update(&mut self, pod: &Pod, deleted: bool, now: Instant) {
        let metadata = pod.metadata.clone().unwrap_or_default();
        let uid: Box<str> = metadata.uid.as_deref().unwrap_or_default().into();
        if let Some(listed) = &mut self.listed {
            listed.insert(uid.clone());
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if deleted || matches!(phase, Some("Succeeded" | "Failed")) {
            self.pods.remove(&uid);
        } else if let Entry::Vacant(new) = self.pods.entry(uid) {
            let mounted = mounted(pod, &metadata, now);
            if !(mounted.objects.is_empty() && mounted.tokens.is_empty()) {
                new.insert(mounted);
            }
        }
    }
}

fn mounted(pod: &Pod, metadata: &ObjectMeta, now: Instant) -> Mounted {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let mut mounted = Mounted::default();
    let object = |kind, name: Option<&str>| {
        let name = name.unwrap_or_default().into();
        Object { kind, namespace: namespace.into(), name }
    };
    let referred = |kind, reference: Option<&LocalObjectReference>| {
        object(kind, reference.and_then(|reference| reference.name.as_deref()))
    };
    let spec = pod.spec.as_ref();
    let volumes = spec.iter().flat_map(|spec| &spec.volumes);
    for source in volumes.filter_map(|volume| volume.volume_source.as_ref()) {
        if let Some(secret) = &source.secret {
            mounted.objects.push(object("secrets", secret.secret_name.as_deref()));
        }
        if let Some(config_map) = &source.config_map {
            mounted.objects.push(referred("configmaps", config_map.local_object_reference.as_ref()));
        }
        for part in source.projected.iter().flat_map(|projected| &projected.sources) {
            if let Some(secret) = &part.secret {
                mounted.objects.push(referred("secrets", secret.local_object_reference.as_ref()));
            }
            if let Some(config_map) = &part.config_map {
                mounted.objects.push(referred("configmaps", config_map.local_object_reference.as_ref()));
            }
            if let Some(token) = &part.service_account_token {
                let account = spec.and_then(|spec| spec.service_account_name.as_deref());
                mounted.tokens.push(self::token(token, account.unwrap_or("default"), metadata, now));
            }
        }
    }
    mounted.objects.retain(|object| !object.name.is_empty());
    mounted
}

fn token(projection: &ServiceAccountTokenProjection, account: &str, pod: &ObjectMeta, now: Instant) -> Token {
    let (seconds, audience) = (projection.expiration_seconds.unwrap_or(3600), projection.audience.clone());
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: audience.filter(|audience| !audience.is_empty()).into_iter().collect(),
            expiration_seconds: Some(seconds),
            bound_object_ref: Some(BoundObjectReference {
                kind: Some("Pod".to_owned()),
                api_version: Some("v1".to_owned()),
                name: pod.name.clone(),
                u_id: pod.uid.clone(),
            }),
        }),
        ..TokenRequest::default()
    };
    let namespace = pod.namespace.as_deref().unwrap_or_default();
    let call = Request {
        method: Method::POST,
        path: format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"),
        body: Body::Object(envelope("authentication.k8s.io/v1", "TokenRequest", &request)),
    };
    Token { call, life: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()), due: now }
}

#[cfg(test)]
mod tests {
    use k8s_pb::api::core::v1::{
        ConfigMapProjection, PodSpec, PodStatus, ProjectedVolumeSource, SecretVolumeSource, Volume,
        VolumeProjection, VolumeSource,
    };

    use super::*;

    /// A pod with the token and the CA certificate that every pod mounts, and with a Secret of its own.
    fn pod(name: &str, phase: &str) -> Vec<u8> {
        let text = |text: &str| Some(text.to_owned());
        let token = ServiceAccountTokenProjection {
            expiration_seconds: Some(3607),
            path: text("token"),
            ..ServiceAccountTokenProjection::default()
        };
        let root = ConfigMapProjection {
            local_object_reference: Some(LocalObjectReference { name: text("kube-root-ca.crt") }),
            ..ConfigMapProjection::default()
        };
        let sources = vec![
            VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
            VolumeProjection { config_map: Some(root), ..VolumeProjection::default() },
        ];
        let projected = ProjectedVolumeSource { sources, ..ProjectedVolumeSource::default() };
        let secret = SecretVolumeSource { secret_name: text(name), ..SecretVolumeSource::default() };
        let volumes = [
            VolumeSource { projected: Some(projected), ..VolumeSource::default() },
            VolumeSource { secret: Some(secret), ..VolumeSource::default() },
        ];
        let volume = |source| Volume { name: None, volume_source: Some(source) };
        Pod {
            metadata: Some(ObjectMeta {
                name: text(name),
                namespace: text("ns"),
                uid: text(name),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec {
                volumes: volumes.map(volume).into(),
                service_account_name: text("robot"),
                ..PodSpec::default()
            }),
            status: Some(PodStatus { phase: text(phase), ..PodStatus::default() }),
        }
        .encode_to_vec()
    }

    fn handle(mounts: &mut Mounts, name: &str, phase: &str, deleted: bool, now: Instant) {
        mounts.handle(&WatchEvent::Object { raw: &pod(name, phase), deleted }, now);
    }

    fn names(mounts: &Mounts) -> Vec<String> {
        mounts.objects().iter().map(|object| format!("{}/{}", object.kind, object.name)).collect()
    }

    #[test]
    fn each_object_is_watched_once_and_as_long_as_a_pod_mounts_it() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        handle(&mut mounts, "a", "Pending", false, now);
        handle(&mut mounts, "b", "Running", false, now);
        assert_eq!(names(&mounts), ["configmaps/kube-root-ca.crt", "secrets/a", "secrets/b"]);
        handle(&mut mounts, "a", "Succeeded", false, now);
        assert_eq!(names(&mounts), ["configmaps/kube-root-ca.crt", "secrets/b"]);
        handle(&mut mounts, "b", "Running", true, now);
        assert!(names(&mounts).is_empty() && mounts.pods.is_empty());
    }

    #[test]
    fn a_list_that_is_complete_says_who_is_gone() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        handle(&mut mounts, "a", "Running", false, now);
        handle(&mut mounts, "b", "Running", false, now);
        mounts.handle(&WatchEvent::InitialList, now);
        handle(&mut mounts, "b", "Running", false, now);
        assert_eq!(mounts.pods.len(), 2, "it may come yet");
        mounts.handle(&WatchEvent::Complete, now);
        assert_eq!(names(&mounts), ["configmaps/kube-root-ca.crt", "secrets/b"]);
    }

    #[test]
    fn a_token_is_requested_at_once_and_again_in_time() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        handle(&mut mounts, "a", "Pending", false, now);
        let calls = mounts.due(now);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].path, "/api/v1/namespaces/ns/serviceaccounts/robot/token");
        assert!(mounts.due(now).is_empty());
        handle(&mut mounts, "a", "Running", false, now);
        assert!(mounts.due(now).is_empty(), "the same pod");
        let again = mounts.next_due().unwrap();
        assert_eq!(again - now, Duration::from_secs(3607).mul_f64(RENEWED_AFTER));
        let paths = |calls: &[Request]| calls.iter().map(|call| call.path.clone()).collect::<Vec<_>>();
        assert_eq!(paths(&mounts.due(again)), paths(&calls));
    }
}
