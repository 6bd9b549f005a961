//! Lookups: whether the objects exist without which pods cannot start, Secrets, `ConfigMaps` and claims.
//!
//! Inputs: pods that are about to start, and answers of the API server. Outputs: requests for the metadata of one object
//! each, and syncs of the pods that wait for the answer.
//!
//! Invariants: an object is looked up once for all pods of a client, again after a back-off while it is missing, and not at
//! all once no pod waits for it. No content is read. Of a kind that the hollow kubelets may not read, all objects count as
//! existing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use http::Method;
use kube_ext::{
    backoff::Backoff,
    transport::{Body, TransportError},
};
use kube_node_cache::{PodView, Reference, ReferenceKind};
use tokio::time::Instant;

use super::{
    pod::missing::Missing,
    request::Request,
    schedule::{Priority, Schedule},
};

/// Back-off while an object is missing. A kubelet tries variables again every 10 s, volumes ever more rarely.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// Time for which an object that was found is not looked up again.
const FRESH: Duration = Duration::from_mins(1);
/// Time after which a kind is tried again that the hollow kubelets may not read.
const DENIED: Duration = Duration::from_mins(5);
/// Part of a refusal that names the user, if that is a machine. It has the right once the API server has seen its pod.
const MACHINE: &str = "User \"system:node:";

/// Lookups of all machines.
#[derive(Default)]
pub struct Lookups {
    /// By key: the UID of the machine that reads with its own client, if one does, and the path of the object.
    objects: HashMap<Arc<str>, Lookup>,
    /// Kinds that may not be read, until these times.
    denied: HashMap<ReferenceKind, Instant>,
}

/// Lookup of one object.
struct Lookup {
    kind: ReferenceKind,
    /// UIDs of the pods that wait for the object, or for the first answer.
    waiting: BTreeSet<Arc<str>>,
    /// Answers in a row by which the object is missing.
    tries: u32,
    found: Option<Instant>,
}

impl Lookups {
    /// References of `pod` whose objects are missing; None while that is being looked up, which ends in a sync of the pod.
    pub fn missing<'a>(
        &mut self,
        pod: &'a PodView,
        machine: Option<&str>,
        schedule: &mut Schedule,
        now: Instant,
    ) -> Option<Vec<Missing<'a>>> {
        let (mut missing, mut is_known) = (Vec::new(), true);
        for reference in &*pod.references {
            let is_denied = self.denied.get(&reference.kind).is_some_and(|until| now < *until);
            if is_denied && machine.is_none() {
                continue;
            }
            let key: Arc<str> = format!("{}{}", machine.unwrap_or_default(), path(pod, reference)).into();
            let lookup = self.objects.entry(Arc::clone(&key)).or_insert_with(|| Lookup {
                kind: reference.kind,
                waiting: BTreeSet::new(),
                tries: 0,
                found: None,
            });
            if lookup.found.is_some_and(|found| now.duration_since(found) < FRESH) {
                continue;
            }
            if lookup.waiting.insert(Arc::clone(&pod.uid)) && lookup.waiting.len() == 1 {
                schedule.enqueue(Priority::Lookup, &key, now);
            }
            match lookup.tries {
                0 => is_known = false,
                tries => missing.push(Missing { reference, tries }),
            }
        }
        is_known.then_some(missing)
    }

    /// Request of a lookup; None once no pod `waits` for the object, which is then forgotten.
    pub fn prepare(
        &mut self,
        key: &str,
        waits: impl Fn(&str) -> bool,
        schedule: &mut Schedule,
        now: Instant,
    ) -> Option<Request> {
        let lookup = self.objects.get_mut(key)?;
        lookup.waiting.retain(|uid| waits(uid));
        if !lookup.waiting.is_empty() {
            let path = key[key.find('/')?..].to_owned();
            return Some(Request { method: Method::GET, path, body: Body::Metadata });
        }
        let fresh_until = lookup.found.map(|found| found + FRESH).filter(|until| now < *until);
        let entry = self.objects.get_key_value(key).map(|(key, _)| Arc::clone(key))?;
        match fresh_until {
            Some(until) => schedule.enqueue(Priority::Lookup, &entry, until),
            None => _ = self.objects.remove(key),
        }
        None
    }

    /// Applies the answer to a lookup.
    pub fn conclude(
        &mut self,
        key: &Arc<str>,
        answer: Result<&str, &TransportError>,
        schedule: &mut Schedule,
        now: Instant,
    ) {
        let Some(lookup) = self.objects.get_mut(key) else { return };
        let is_denied = matches!(answer, Err(TransportError::Refused(status))
            if status.code == 403 && !status.message.contains(MACHINE));
        let again = match answer {
            Err(error) if is_denied => {
                tracing::debug!(kind = ?lookup.kind, error = error as &dyn std::error::Error, "pods do not wait for these objects");
                self.denied.insert(lookup.kind, now + DENIED);
                None
            }
            Ok(_) => None,
            Err(error) => {
                lookup.tries += u32::from(error.code() == Some(404));
                Some(BACKOFF.jittered(lookup.tries.max(1)))
            }
        };
        if again.is_none() || lookup.tries.is_power_of_two() {
            for pod in &lookup.waiting {
                schedule.enqueue(Priority::Pod, pod, now);
            }
        }
        if again.is_none() {
            lookup.waiting.clear();
            (lookup.tries, lookup.found) = (0, Some(now));
        }
        schedule.enqueue(Priority::Lookup, key, now + again.unwrap_or(FRESH));
    }
}

/// UID of the machine that reads with its own client, by the key of a lookup.
pub fn machine_of(key: &str) -> Option<&str> {
    let (machine, _) = key.split_once('/')?;
    Some(machine).filter(|machine| !machine.is_empty())
}

/// Path of a referenced object on the API server.
fn path(pod: &PodView, reference: &Reference) -> String {
    let kind = match reference.kind {
        ReferenceKind::Secret => "secrets",
        ReferenceKind::ConfigMap => "configmaps",
        ReferenceKind::Claim => "persistentvolumeclaims",
    };
    format!("/api/v1/namespaces/{}/{kind}/{}", pod.namespace, reference.name)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use kube_node_cache::ReferenceUser;

    use super::*;

    fn pod(uid: &str) -> PodView {
        let user = ReferenceUser::Volume("v".into());
        let reference = Reference { kind: ReferenceKind::Secret, name: "s".into(), user };
        PodView {
            uid: uid.into(),
            namespace: "ns".into(),
            references: [reference].into(),
            ..PodView::default()
        }
    }

    fn refused(code: u16, message: &str) -> TransportError {
        TransportError::Refused(Status::failure(message, "").with_code(code).boxed())
    }

    /// Lookups with their schedule, at a second.
    struct World {
        lookups: Lookups,
        schedule: Schedule,
        start: Instant,
    }

    impl World {
        fn new() -> Self {
            let start = Instant::now();
            let schedule = Schedule::new(start, Duration::from_secs(15));
            Self { lookups: Lookups::default(), schedule, start }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        /// Number of missing objects of a pod; None while they are looked up.
        fn missing(&mut self, uid: &str, machine: Option<&str>, second: u64) -> Option<usize> {
            let now = self.at(second);
            self.lookups.missing(&pod(uid), machine, &mut self.schedule, now).map(|missing| missing.len())
        }

        /// Answers the lookups that are due, by pods that wait; returns their paths and the pods to sync.
        fn answer(
            &mut self,
            second: u64,
            answer: Result<&str, &TransportError>,
        ) -> (Vec<String>, Vec<String>) {
            let (now, mut paths, mut pods) = (self.at(second), Vec::new(), Vec::new());
            while let Some(job) = self.schedule.next(now, crate::schedule::Pressure::Light) {
                if job.priority == Priority::Pod {
                    pods.push(job.uid.to_string());
                } else if let Some(request) =
                    self.lookups.prepare(&job.uid, |_| true, &mut self.schedule, now)
                {
                    paths.push(request.path);
                    self.lookups.conclude(&job.uid, answer, &mut self.schedule, now);
                }
                self.schedule.done(job.priority, &job.uid);
            }
            (paths, pods)
        }
    }

    #[test]
    fn an_object_is_looked_up_once_for_all_pods_and_again_until_found() {
        let mut world = World::new();
        assert_eq!((world.missing("a", None, 0), world.missing("b", None, 0)), (None, None));
        let path = "/api/v1/namespaces/ns/secrets/s".to_owned();
        let gone = refused(404, "");
        let both = || vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(world.answer(0, Err(&gone)), (vec![path.clone()], both()));
        assert_eq!((world.missing("a", None, 0), world.missing("b", None, 0)), (Some(1), Some(1)));
        assert_eq!(
            world.answer(20, Ok("7")),
            (vec![path], both()),
            "pods are synced once the object is there"
        );
        assert_eq!((world.missing("a", None, 20), world.missing("c", None, 30)), (Some(0), Some(0)));
        assert_eq!(world.answer(200, Ok("7")), (vec![], vec![]));
        assert!(world.lookups.objects.is_empty(), "nothing is kept of an object without pods");
    }

    #[test]
    fn without_the_right_objects_count_as_existing_and_a_machine_asks_for_itself() {
        let mut world = World::new();
        assert_eq!(world.missing("a", None, 0), None);
        let forbidden = refused(403, "secrets is forbidden: User \"system:serviceaccount:a:b\"");
        assert_eq!(world.answer(0, Err(&forbidden)).1, ["a"]);
        assert_eq!((world.missing("a", None, 0), world.missing("other", None, 100)), (Some(0), Some(0)));
        assert_eq!(world.missing("d", Some("uid"), 100), None);
        let key: Arc<str> = "uid/api/v1/namespaces/ns/secrets/s".into();
        assert_eq!(machine_of(&key), Some("uid"));
        let early = refused(403, "secrets is forbidden: User \"system:node:n\"");
        assert_eq!(world.answer(100, Err(&early)).0, ["/api/v1/namespaces/ns/secrets/s"]);
        assert_eq!(world.missing("d", Some("uid"), 100), None, "the API server has not seen the pod yet");
        assert_eq!(world.answer(110, Ok("7")).1, ["d"]);
    }
}
