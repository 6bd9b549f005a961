//! Scripts: the behaviour of a pod's containers, from its annotations, else from its machine's defaults.

use std::time::Duration;

use kube_node_api::{ContainerDefaults, GoDuration, names, quantity};
use kube_node_cache::{
    Container, HOLLOW_ANNOTATIONS, LONGEST_ANNOTATION, PodSpecView, Probe, RestartPolicy, hollow_annotation,
};

/// Default run time of a container that ends.
const RUN_TIME: Duration = Duration::from_secs(1);
/// Value of [`names::ANNOTATION_READY_TIME`] for a container that is never ready.
const NEVER: &str = "never";
/// Time until such a container is ready.
const NEVER_READY: Duration = Duration::MAX;
/// Exit reason that implies the exit code of a kill.
const OOM_KILLED: &str = "OOMKilled";
/// Exit code of a container that was killed: 128 + SIGKILL.
pub const KILLED: i32 = 137;
/// Exit code of a container that ends by the default action of SIGTERM: 128 + SIGTERM.
const TERMINATED: i32 = 143;

/// Role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ends before the next container starts.
    Init,
    /// Runs beside all later containers.
    Sidecar,
    /// One of the pod's main containers.
    Regular,
}

impl Role {
    /// Role of an init container.
    pub fn of_init(container: &Container) -> Self {
        if container.is_sidecar() { Self::Sidecar } else { Self::Init }
    }
}

/// Simulated behaviour of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// Role in the pod.
    pub role: Role,
    /// Restart policy.
    pub restart: RestartPolicy,
    /// Time to pull the image and create the container.
    pub start_time: Duration,
    /// Error of the image pull, if it fails.
    pub image_error: Option<&'a str>,
    /// Error of the start, if it fails.
    pub start_error: Option<&'a str>,
    /// Time from the start until the container counts as started.
    pub started_after: Duration,
    /// Time from the start until the container is ready; None for never.
    pub ready_after: Option<Duration>,
    /// Run time; None for endless.
    pub run_time: Option<Duration>,
    /// Exit code of an end by itself.
    pub exit_code: i32,
    /// Exit reason of an end by itself, if it does not follow from the exit code.
    pub exit_reason: Option<&'a str>,
    /// Exit code of an end by SIGTERM.
    pub stop_code: i32,
    /// Time of the `preStop` hook.
    pub pre_stop: Duration,
    /// Time from SIGTERM until the end.
    pub stop_time: Duration,
    /// Grace period of the pod.
    pub grace: Duration,
}

impl<'a> Script<'a> {
    /// Script of a container of `pod`. An unreadable annotation counts as absent: see [`invalid_annotations`].
    pub fn of(pod: &'a PodSpecView, container: &Container, role: Role, defaults: &ContainerDefaults) -> Self {
        // Annotations for all containers and the class's defaults apply to regular containers only.
        let is_regular = role == Role::Regular;
        let annotations = Annotations::of(pod, &container.name, role);
        let default = |time: Option<GoDuration>| time.filter(|_| is_regular).map(|time| time.0);
        let time = |annotation: &str, class: Option<GoDuration>| {
            annotations.find(annotation, duration).or(default(class)).unwrap_or_default()
        };
        let restart = match (role, container.restart_policy.unwrap_or(pod.restart_policy)) {
            (Role::Sidecar, _) => RestartPolicy::Always,
            // An init container that succeeded does not restart.
            (Role::Init, RestartPolicy::Always) => RestartPolicy::OnFailure,
            (Role::Init | Role::Regular, policy) => policy,
        };
        let ends = match role {
            Role::Init => Some(Duration::ZERO),
            Role::Regular if restart != RestartPolicy::Always => {
                Some(defaults.run_time.map_or(RUN_TIME, |time| time.0))
            }
            Role::Sidecar | Role::Regular => None,
        };
        let exit_reason = annotations.find(names::ANNOTATION_EXIT_REASON, reason);
        let annotated_code = annotations.find(names::ANNOTATION_EXIT_CODE, code);
        let class_code = defaults.exit_code.filter(|_| is_regular);
        let default_code = if exit_reason == Some(OOM_KILLED) { KILLED } else { class_code.unwrap_or(0) };
        let started_after = container.startup.map_or(Duration::ZERO, Probe::begins_after);
        let probed = container
            .readiness
            .map_or(started_after, |probe| started_after.max(probe.begins_after()) + probe.passes_after());
        let ready_time =
            annotations.find(names::ANNOTATION_READY_TIME, ready_time).or(default(defaults.ready_time));
        let ready_after = ready_time.map_or(probed, |time| time.max(started_after));
        Self {
            role,
            restart,
            start_time: time(names::ANNOTATION_START_TIME, defaults.start_time),
            image_error: annotations.find(names::ANNOTATION_IMAGE_ERROR, text),
            start_error: annotations.find(names::ANNOTATION_START_ERROR, text),
            started_after,
            ready_after: Some(ready_after).filter(|time| *time != NEVER_READY),
            run_time: annotations.find(names::ANNOTATION_RUN_TIME, duration).or(ends),
            exit_code: annotated_code.unwrap_or(default_code),
            exit_reason,
            stop_code: annotated_code.or(class_code).unwrap_or(TERMINATED),
            pre_stop: container.pre_stop,
            stop_time: time(names::ANNOTATION_STOP_TIME, defaults.stop_time),
            grace: pod.grace,
        }
    }

    /// Returns true if the container restarts after it ended with `exit_code`.
    pub fn restarts_after(&self, exit_code: i32) -> bool {
        match self.restart {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Never => false,
        }
    }
}

/// Annotations that apply to one container.
pub(super) struct Annotations<'a, 'b> {
    pod: &'a PodSpecView,
    container: &'b str,
    /// True if annotations for all containers apply.
    of_all: bool,
}

impl<'a, 'b> Annotations<'a, 'b> {
    /// Annotations for a container of `pod`; those for all containers apply to regular ones only.
    pub(super) fn of(pod: &'a PodSpecView, container: &'b str, role: Role) -> Self {
        Self { pod, container, of_all: role == Role::Regular }
    }

    /// Value of annotation `what`: for this container, else for all containers.
    pub(super) fn find<T>(&self, what: &str, read: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        let value_for = |container: Option<&str>| {
            let mut all = self.pod.hollow_annotations.iter();
            let (_, value) = all.find(|(key, _)| hollow_annotation(key) == (what, container))?;
            read(value)
        };
        value_for(Some(self.container)).or_else(|| value_for(None).filter(|_| self.of_all))
    }
}

/// Unreadable annotations of `pod`, each with a description of the valid values.
pub fn invalid_annotations(pod: &PodSpecView) -> impl Iterator<Item = String> + '_ {
    pod.hollow_annotations.iter().filter_map(|(key, value)| {
        let (what, container) = hollow_annotation(key);
        if !HOLLOW_ANNOTATIONS.contains(&what) {
            let known = HOLLOW_ANNOTATIONS.join(", ");
            return Some(format!("annotation {key} says nothing to a hollow kubelet: there are {known}"));
        }
        let (is_code, is_text) = (code(value).is_some(), text(value).is_some());
        let is_amount = amount(value).is_some();
        let (is_valid, valid_values) = match what {
            names::ANNOTATION_EXIT_CODE | names::ANNOTATION_EXEC_EXIT_CODE => (is_code, "0 to 255"),
            names::ANNOTATION_EXIT_REASON => {
                (reason(value).is_some(), "one word in CamelCase, for example OOMKilled")
            }
            names::ANNOTATION_READY_TIME => {
                (ready_time(value).is_some(), "a duration, for example 5s, or never")
            }
            names::ANNOTATION_IMAGE_ERROR => {
                (is_text, "why the image cannot be pulled, for example not found")
            }
            names::ANNOTATION_START_ERROR => {
                (is_text, "why the container cannot be started, for example exec: no such file")
            }
            names::ANNOTATION_LOG_LINE => (is_text, "a line, for example ready to serve"),
            names::ANNOTATION_CPU => (is_amount, "an amount, for example 10m"),
            names::ANNOTATION_MEMORY => (is_amount, "an amount, for example 50Mi"),
            _ => (duration(value).is_some(), "a duration, for example 5s"),
        };
        let mut all = pod.containers.iter().chain(&pod.init_containers);
        if let Some(name) = container.filter(|name| !all.any(|container| *container.name == **name)) {
            return Some(format!(
                "annotation {key}: the pod has no container {name:?}: write the name of one"
            ));
        }
        let wrong = if value.is_empty() {
            format!("is empty or longer than {LONGEST_ANNOTATION} bytes")
        } else {
            format!("{value:?} cannot be read")
        };
        (!is_valid).then(|| format!("annotation {key}: {wrong}: write {valid_values}"))
    })
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<GoDuration>().ok().map(|duration| duration.0)
}

fn ready_time(text: &str) -> Option<Duration> {
    if text == NEVER { Some(NEVER_READY) } else { duration(text) }
}

pub(super) fn code(text: &str) -> Option<i32> {
    text.parse::<u8>().ok().map(i32::from)
}

fn reason(text: &str) -> Option<&str> {
    let is_word = text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some(text)
}

pub(super) fn text(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.trim().is_empty())
}

/// Parses a quantity into billionths of one.
pub(super) fn amount(text: &str) -> Option<i128> {
    let nanos = quantity::nanos_of(text).ok()?;
    // Amounts of an exbibyte and more are refused.
    Some(nanos).filter(|nanos| (1..1_000_000_000 << 60).contains(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(key: &str) -> Box<str> {
        format!("{}{key}", names::HOLLOW_PREFIX).into()
    }

    fn spec(restart_policy: RestartPolicy, annotations: &[(&str, &str)]) -> PodSpecView {
        let container = |name: &str| Container { name: name.into(), ..Container::default() };
        PodSpecView {
            restart_policy,
            containers: [container("a"), container("b")].into(),
            init_containers: [container("init")].into(),
            hollow_annotations: annotations.iter().map(|(key, value)| (full(key), (*value).into())).collect(),
            ..PodSpecView::default()
        }
    }

    fn regular<'a>(pod: &'a PodSpecView, defaults: &ContainerDefaults) -> Script<'a> {
        Script::of(pod, &pod.containers[0], Role::Regular, defaults)
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_closer_wins_annotation_class_and_built_in() {
        let class = ContainerDefaults {
            run_time: Some(GoDuration(secs(5))),
            exit_code: Some(3),
            ready_time: Some(GoDuration(secs(2))),
            ..ContainerDefaults::default()
        };
        let none = ContainerDefaults::default();
        let never = RestartPolicy::Never;
        let bare = spec(never, &[]);
        assert_eq!(regular(&bare, &none).run_time, Some(RUN_TIME));
        let of_class = regular(&bare, &class);
        assert_eq!((of_class.run_time, of_class.exit_code), (Some(secs(5)), 3));
        assert_eq!(of_class.ready_after, Some(secs(2)));
        let pod = spec(never, &[("run-time", "9s"), ("run-time.b", "8s"), ("exit-code", "0")]);
        let a = regular(&pod, &class);
        let b = Script::of(&pod, &pod.containers[1], Role::Regular, &class);
        assert_eq!((a.run_time, a.exit_code, b.run_time), (Some(secs(9)), 0, Some(secs(8))));
        assert_eq!(regular(&spec(RestartPolicy::Always, &[]), &class).run_time, None);
    }

    #[test]
    fn what_is_said_of_all_does_not_mean_init_containers() {
        let pod =
            spec(RestartPolicy::Always, &[("exit-code", "1"), ("run-time", "9s"), ("start-time.init", "4s")]);
        let init = Script::of(&pod, &pod.init_containers[0], Role::Init, &ContainerDefaults::default());
        assert_eq!((init.run_time, init.exit_code), (Some(Duration::ZERO), 0));
        assert_eq!((init.start_time, init.restart), (secs(4), RestartPolicy::OnFailure));
        let sidecar = Script::of(&pod, &pod.init_containers[0], Role::Sidecar, &ContainerDefaults::default());
        assert_eq!((sidecar.run_time, sidecar.restart), (None, RestartPolicy::Always));
    }

    #[test]
    fn probes_decide_readiness_unless_an_annotation_does() {
        let probe = |initial_delay_seconds, success_threshold| {
            Some(Probe { initial_delay_seconds, success_threshold, period_seconds: 5 })
        };
        let mut pod = spec(RestartPolicy::Always, &[]);
        let none = ContainerDefaults::default();
        pod.containers[0].readiness = probe(3, 2);
        assert_eq!(regular(&pod, &none).ready_after, Some(secs(8)));
        pod.containers[0].startup = probe(20, 1);
        let script = regular(&pod, &none);
        assert_eq!((script.started_after, script.ready_after), (secs(20), Some(secs(25))));
        pod.hollow_annotations = [(full("ready-time"), "never".into())].into();
        assert_eq!(regular(&pod, &none).ready_after, None);
    }

    #[test]
    fn memory_that_ran_out_kills() {
        let pod = spec(RestartPolicy::Always, &[("exit-reason", "OOMKilled"), ("run-time", "5s")]);
        let script = regular(&pod, &ContainerDefaults::default());
        assert_eq!((script.exit_code, script.exit_reason), (KILLED, Some("OOMKilled")));
    }

    #[test]
    fn every_annotation_of_the_cache_has_valid_values() {
        for annotation in HOLLOW_ANNOTATIONS {
            let key = annotation.trim_start_matches(names::HOLLOW_PREFIX);
            let messages: Vec<String> =
                invalid_annotations(&spec(RestartPolicy::Never, &[(key, "")])).collect();
            assert!(messages.len() == 1 && messages[0].contains(": write "), "{messages:?}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_what_to_write_and_the_default_used() {
        let wrong = [
            ("run-time", "9", "a duration"),
            ("stop-time", "long", "a duration"),
            ("exit-code", "256", "0 to 255"),
            ("exit-reason", "out of memory", "OOMKilled"),
            ("ready-time", "later", "never"),
            ("start-error", " ", "why the container"),
            ("log-line", "", "longer than 4096 bytes"),
            ("runtime", "5s", "/run-time, "),
            ("run-time.c", "5s", "no container \"c\""),
        ];
        for (key, value, write) in wrong {
            let bad = spec(RestartPolicy::Never, &[(key, value)]);
            let messages: Vec<String> = invalid_annotations(&bad).collect();
            assert!(
                messages.len() == 1 && messages[0].contains(key) && messages[0].contains(write),
                "{messages:?}"
            );
            let good = spec(RestartPolicy::Never, &[]);
            let none = ContainerDefaults::default();
            assert_eq!(regular(&bad, &none), regular(&good, &none), "{key}");
        }
        assert_eq!(invalid_annotations(&spec(RestartPolicy::Never, &[("exit-code.init", "1")])).count(), 0);
    }
}
