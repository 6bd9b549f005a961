//! Simulated output of a running container: log lines, resource usage, and exit codes of commands.
//!
//! All values come from annotations, the class or the container's requests; none is stored.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ContainerDefaults, names};
use kube_node_cache::{Container, ContainerState, ContainerView, PodSpecView, PodView, Terminated};

use super::{
    reasons,
    script::{Annotations, Role, amount, code, duration, text},
};

/// Default time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between two log lines.
const LOG_SHORTEST: Duration = Duration::from_millis(10);
/// CPU usage of a container without a CPU request, in billionths of a core.
const CPU: u64 = 1_000_000;
/// Memory usage of a container without a memory request, in bytes.
const MEMORY: u64 = 10 << 20;

/// Simulated output of a container.
pub struct Output<'a> {
    /// Text of a log line; None for numbered lines.
    pub log_line: Option<&'a str>,
    /// Time between two log lines.
    pub log_interval: Duration,
    /// CPU usage, in billionths of a core; never zero.
    pub nano_cores: u64,
    /// Memory usage, in bytes; never zero.
    pub memory: u64,
    /// Exit code of commands unknown to the simulated shell.
    pub exec_exit_code: i32,
}

impl<'a> Output<'a> {
    /// Output of a container of `pod`. An unreadable annotation counts as absent.
    pub fn of(pod: &'a PodSpecView, container: &Container, role: Role, defaults: &ContainerDefaults) -> Self {
        let annotations = Annotations::of(pod, &container.name, role);
        // Amount of the annotation, else that of the class, else half of the request.
        let used = |annotation: &str, of_class: &Option<String>, resource: &str| {
            let of_class = of_class.as_deref().filter(|_| role == Role::Regular);
            let mut requests = container.resources.requests.iter();
            let request = requests.find(|(name, _)| **name == *resource);
            let half = request.and_then(|(_, all)| amount(all)).map(|all| all / 2);
            annotations.find(annotation, amount).or(of_class.and_then(amount)).or(half)
        };
        let cpu = used(names::ANNOTATION_CPU, &defaults.cpu, "cpu");
        let memory = used(names::ANNOTATION_MEMORY, &defaults.memory, "memory");
        let interval = annotations.find(names::ANNOTATION_LOG_INTERVAL, duration);
        let whole = |nanos: i128| u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX).max(1);
        Self {
            log_line: annotations.find(names::ANNOTATION_LOG_LINE, text),
            log_interval: interval.unwrap_or(LOG_INTERVAL).max(LOG_SHORTEST),
            nano_cores: cpu.map_or(CPU, |nanos| u64::try_from(nanos).unwrap_or(u64::MAX).max(1)),
            memory: memory.map_or(MEMORY, whole),
            exec_exit_code: annotations.find(names::ANNOTATION_EXEC_EXIT_CODE, code).unwrap_or(0),
        }
    }
}

/// A container of a pod: spec, role and status.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Container in the spec.
    pub spec: &'a Container,
    /// Role in the pod.
    pub role: Role,
    /// Container status; None while the pod shows none.
    pub view: Option<&'a ContainerView>,
}

/// All containers of a pod, init containers first.
pub fn containers(pod: &PodView) -> impl Iterator<Item = Found<'_>> {
    let (spec, status) = (&pod.spec, &pod.status);
    let inits = spec.init_containers.iter().map(|spec| (spec, Role::of_init(spec), &status.init_containers));
    let regulars = spec.containers.iter().map(|spec| (spec, Role::Regular, &status.containers));
    inits.chain(regulars).map(|(spec, role, views)| Found {
        spec,
        role,
        view: views.iter().find(|view| view.name == spec.name),
    })
}

/// A container of a pod, by name.
pub fn container<'a>(pod: &'a PodView, name: &str) -> Option<Found<'a>> {
    containers(pod).find(|found| *found.spec.name == *name)
}

/// A run of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Start time.
    pub began: Timestamp,
    /// End time; None while the container runs.
    pub ended: Option<Timestamp>,
    /// False if the container could not be started; such a run has no output.
    pub started: bool,
}

impl Run {
    fn of(ended: &Terminated) -> Option<Self> {
        let began = ended.started?;
        let started = *ended.reason != *reasons::START_ERROR;
        Some(Self { began, ended: Some(ended.finished.unwrap_or(began)), started })
    }

    /// Current run of a container.
    pub fn current(view: &ContainerView) -> Option<Self> {
        let ContainerState::Running { since } = view.state else { return None };
        Some(Self { began: since?, ended: None, started: true })
    }

    /// This run, identified by its start time, as the container shows it now.
    pub fn again(&self, view: &ContainerView) -> Option<Self> {
        let ended = match &view.state {
            ContainerState::Terminated(ended) => Self::of(ended),
            _ => None,
        };
        let last = view.last.as_deref().and_then(Self::of);
        Self::current(view).into_iter().chain(ended).chain(last).find(|run| run.began == self.began)
    }

    /// Run whose log is requested: the previous one or the latest. Otherwise the kubelet's error message.
    pub fn logged(pod: &PodView, found: &Found<'_>, previous: bool) -> Result<Self, String> {
        let container = format!("container {:?} in pod {:?}", found.spec.name, pod.name);
        let Some(view) = found.view else { return Err(format!("{container} is not available")) };
        let (run, message) = match &view.state {
            _ if previous => (None, format!("previous terminated {container} not found")),
            ContainerState::Running { .. } => {
                (Self::current(view), format!("{container} is waiting to start - no logs yet"))
            }
            ContainerState::Terminated(ended) => (Self::of(ended), format!("{container} is terminated")),
            ContainerState::Waiting { reason, .. } => {
                let cause = match &**reason {
                    reasons::PULL_FAILED => "image can't be pulled",
                    reasons::PULL_BACK_OFF => "trying and failing to pull image",
                    reason => reason,
                };
                (None, format!("{container} is waiting to start: {cause}"))
            }
        };
        run.or_else(|| view.last.as_deref().and_then(Self::of)).ok_or(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_node_cache::ContainerResources;

    fn spec(annotations: &[(&str, &str)], requests: &[(&str, &str)]) -> PodSpecView {
        let pairs = |pairs: &[(&str, &str)], prefix: &str| {
            pairs.iter().map(|(key, value)| (format!("{prefix}{key}").into(), (*value).into())).collect()
        };
        let resources = ContainerResources { requests: pairs(requests, ""), limits: [].into() };
        PodSpecView {
            containers: [Container { name: "a".into(), resources, ..Container::default() }].into(),
            hollow_annotations: pairs(annotations, names::HOLLOW_PREFIX),
            ..PodSpecView::default()
        }
    }

    fn output<'a>(pod: &'a PodSpecView, class: &ContainerDefaults) -> Output<'a> {
        Output::of(pod, &pod.containers[0], Role::Regular, class)
    }

    #[test]
    fn the_closer_wins_and_nothing_is_zero() {
        let class = ContainerDefaults {
            cpu: Some("30m".to_owned()),
            memory: Some("1Gi".to_owned()),
            ..ContainerDefaults::default()
        };
        let none = ContainerDefaults::default();
        let uses = |pod: &PodSpecView, class: &ContainerDefaults| {
            let Output { nano_cores, memory, .. } = output(pod, class);
            (nano_cores, memory)
        };
        let requests = [("cpu", "100m"), ("memory", "64Mi")];
        assert_eq!(uses(&spec(&[], &[]), &none), (CPU, MEMORY));
        assert_eq!(uses(&spec(&[], &requests), &none), (50_000_000, 32 << 20));
        assert_eq!(uses(&spec(&[], &requests), &class), (30_000_000, 1 << 30));
        assert_eq!(uses(&spec(&[("cpu", "2"), ("memory.a", "5")], &requests), &class), (2_000_000_000, 5));
        assert_eq!(uses(&spec(&[("cpu", "0"), ("memory", "1n")], &[]), &none), (CPU, 1));
        assert_eq!(
            uses(&spec(&[("memory", "-5"), ("cpu", "much")], &requests), &none),
            (50_000_000, 32 << 20)
        );
        let quick = spec(&[("log-interval", "1ms"), ("log-line", "hello"), ("exec-exit-code", "3")], &[]);
        let quick = output(&quick, &none);
        assert_eq!(
            (quick.log_interval, quick.log_line, quick.exec_exit_code),
            (LOG_SHORTEST, Some("hello"), 3)
        );
    }

    #[test]
    fn a_run_is_the_one_that_a_kubelet_would_read() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ended = |from, reason: &str| Terminated {
            exit_code: 1,
            crashes: 0,
            reason: reason.into(),
            started: Some(at(from)),
            finished: Some(at(from + 5)),
        };
        let waiting = |reason: &str| ContainerState::waiting(reason.into(), None);
        let mut view = ContainerView {
            name: "a".into(),
            ready: false,
            started: false,
            restarts: 0,
            image: "docker.io/library/i:latest".into(),
            crashes: 0,
            state: waiting("ContainerCreating"),
            last: None,
        };
        let spec = spec(&[], &[]);
        let pod = PodView { name: "p".into(), ..PodView::default() };
        let run = |view: &ContainerView, previous| {
            let found = Found { spec: &spec.containers[0], role: Role::Regular, view: Some(view) };
            Run::logged(&pod, &found, previous)
        };
        let waits = |view: &ContainerView, text: &str| {
            let error = run(view, false).unwrap_err();
            assert_eq!(error, format!("container \"a\" in pod \"p\" is waiting to start: {text}"));
        };
        waits(&view, "ContainerCreating");
        view.state = waiting("ErrImagePull");
        waits(&view, "image can't be pulled");
        view.state = waiting("ImagePullBackOff");
        waits(&view, "trying and failing to pull image");
        view.state = ContainerState::Running { since: Some(at(7)) };
        let running = run(&view, false).unwrap();
        assert_eq!((running.began, running.ended), (at(7), None));
        let none = run(&view, true).unwrap_err();
        assert_eq!(none, "previous terminated container \"a\" in pod \"p\" not found");
        view.state = waiting("CrashLoopBackOff");
        view.last = Some(Box::new(ended(7, "Error")));
        assert_eq!(run(&view, false), run(&view, true));
        assert_eq!(running.again(&view).unwrap().ended, Some(at(12)));
        view.state = ContainerState::Terminated(ended(20, "StartError"));
        let failed = run(&view, false).unwrap();
        assert!(failed.began == at(20) && !failed.started);
        assert_eq!(run(&view, true).unwrap().began, at(7));
        assert_eq!(Run { began: at(1), ..failed }.again(&view), None);
    }
}
