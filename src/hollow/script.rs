//! How the containers of a pod run: what its annotations say, else the defaults of its machine.

use std::time::Duration;

use crate::{
    api::{ContainerDefaults, GoDuration, names},
    cache::{PodView, RestartPolicy, Scripts},
};

/// How long a container runs that ends and for which nobody says more.
const RUN_TIME: Duration = Duration::from_secs(1);

/// How the containers of a pod run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// How long each runs; None for ever.
    pub run_time: Option<Duration>,
    /// What each exits with.
    pub exit_code: i32,
    /// How long each takes to stop.
    pub stop_time: Duration,
}

impl Script {
    /// The script of `pod`. What cannot be read counts as absent: see [`mistakes`].
    #[must_use]
    pub fn of(pod: &PodView, defaults: &ContainerDefaults) -> Self {
        let Scripts { run_time, exit_code, stop_time } = &pod.scripts;
        let asked = run_time.as_deref().and_then(duration);
        let default = || defaults.run_time.map_or(RUN_TIME, |time| time.0);
        Self {
            run_time: match pod.restart_policy {
                RestartPolicy::Always => asked,
                RestartPolicy::OnFailure | RestartPolicy::Never => Some(asked.unwrap_or_else(default)),
            },
            exit_code: exit_code.as_deref().and_then(code).or(defaults.exit_code).unwrap_or(0),
            stop_time: stop_time.as_deref().and_then(duration).unwrap_or_default(),
        }
    }
}

/// What in the annotations cannot be read, with what to write instead.
pub fn mistakes(scripts: &Scripts) -> impl Iterator<Item = String> {
    let Scripts { run_time, exit_code, stop_time } = scripts;
    let durations = [(names::ANNOTATION_RUN_TIME, run_time), (names::ANNOTATION_STOP_TIME, stop_time)]
        .into_iter()
        .filter_map(|(name, value)| {
            let error = value.as_deref()?.parse::<GoDuration>().err()?;
            Some(format!("annotation {name}: {error}"))
        });
    let codes = exit_code.as_deref().filter(|value| code(value).is_none()).map(|value| {
        format!("annotation {}: {value:?} is no exit code: write 0 to 255", names::ANNOTATION_EXIT_CODE)
    });
    durations.chain(codes)
}

fn duration(text: &str) -> Option<Duration> {
    text.parse::<GoDuration>().ok().map(|duration| duration.0)
}

fn code(text: &str) -> Option<i32> {
    text.parse::<u8>().ok().map(i32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(restart_policy: RestartPolicy, run_time: Option<&str>, exit_code: Option<&str>) -> PodView {
        let scripts = Scripts {
            run_time: run_time.map(Into::into),
            exit_code: exit_code.map(Into::into),
            stop_time: None,
        };
        PodView { restart_policy, scripts, ..PodView::default() }
    }

    #[test]
    fn an_annotation_wins_over_the_class_and_that_over_a_second() {
        let class = ContainerDefaults {
            run_time: Some(GoDuration(Duration::from_secs(5))),
            exit_code: Some(3),
            ..ContainerDefaults::default()
        };
        let of = |pod: &PodView, defaults| Script::of(pod, defaults);
        let never = RestartPolicy::Never;
        let none = ContainerDefaults::default();
        assert_eq!(of(&pod(never, None, None), &none).run_time, Some(RUN_TIME));
        assert_eq!(of(&pod(never, None, None), &class).run_time, Some(Duration::from_secs(5)));
        assert_eq!(of(&pod(never, Some("9s"), Some("0")), &class).exit_code, 0);
        assert_eq!(of(&pod(never, Some("9s"), None), &class).run_time, Some(Duration::from_secs(9)));
        assert_eq!(of(&pod(RestartPolicy::Always, None, None), &class).run_time, None);
    }

    #[test]
    fn a_mistake_is_named_and_the_default_used() {
        let bad = pod(RestartPolicy::Never, Some("9"), Some("256"));
        let script = Script::of(&bad, &ContainerDefaults::default());
        assert_eq!((script.run_time, script.exit_code), (Some(RUN_TIME), 0));
        let texts: Vec<String> = mistakes(&bad.scripts).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("run-time") && texts[1].contains("0 to 255"), "{texts:?}");
    }
}
