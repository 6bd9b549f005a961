//! What is due when, for all machines and pods at once: no timer each.
//!
//! A job is known by its lane and the UID of its object. It waits at most once, the earliest asked-for time wins, and it
//! is never handed out again before [`Schedule::done`].

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use kube_node_planner::node::LEASE_FRESH;
use tokio::time::Instant;

use super::sync::RENEW;

/// What a process that takes over needs until it has renewed the oldest Leases.
const RESUMPTION: Duration = Duration::from_secs(5);

/// Renewals that come due within this time go together. Measured at 5,000 idle nodes: 0.08 cores with each alone, 0.045 so, and
/// 0.62 against 0.40 in kube-apiserver (docs/benchmarks.md). A kubelet renews up to 0.4 s later than each 10 s, too (jitter of
/// 0.04, component-helpers' lease controller).
const TOGETHER: Duration = Duration::from_millis(100);

/// How much is under way besides renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// There is room for all.
    Light,
    /// What has time had better wait.
    Heavy,
    /// So does what machines write of themselves: there is room for pods alone, and for Leases that cannot wait.
    Machines,
}

impl Pressure {
    /// Whether a job that is due goes now. Renewals that are late go in any case.
    fn lets(self, priority: Priority) -> bool {
        match self {
            Self::Light => true,
            Self::Heavy => priority != Priority::Renewal,
            Self::Machines => matches!(priority, Priority::Prompt | Priority::Pod | Priority::Event),
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Renew a Lease that waits for nothing else: of unknown age, after a failure, and that of a machine that stands alone.
    Prompt,
    /// Create the Lease of a machine.
    Lease,
    /// Renew a Lease, of our own or that of a process before.
    Renewal,
    /// Look at the status of a machine's Node.
    Status,
    /// Look at a pod.
    Pod,
    /// Tell people what happened to pods: one job for all.
    Event,
}

const LANES: [Priority; 6] =
    [Priority::Prompt, Priority::Lease, Priority::Renewal, Priority::Status, Priority::Pod, Priority::Event];

/// A job that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What is to be done.
    pub priority: Priority,
    /// UID of the object.
    pub uid: Arc<str>,
    /// Since when it is due.
    pub due: Instant,
}

/// All jobs.
#[derive(Debug)]
pub struct Schedule {
    /// Since when times are counted at which renewals go.
    start: Instant,
    /// How late a renewal may be before it goes ahead of everything else.
    renewal_slack: Duration,
    lanes: [Waiting; LANES.len()],
}

#[derive(Debug, Default)]
struct Waiting {
    /// Jobs by their time, those handed out excepted.
    by_time: BTreeSet<(Instant, Arc<str>)>,
    jobs: HashMap<Arc<str>, State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    at: Option<Instant>,
    handed_out: bool,
}

impl Schedule {
    /// Without jobs. A Lease that was not renewed because other work went first must outlast the death of this process and
    /// `vacancy`, after which another one begins to renew.
    #[must_use]
    pub fn new(start: Instant, vacancy: Duration) -> Self {
        let renewal_slack = LEASE_FRESH.saturating_sub(vacancy.saturating_add(RENEW + RESUMPTION));
        Self { start, renewal_slack, lanes: Default::default() }
    }

    /// Asks for a job at `at`, or earlier if that was asked for before. A renewal goes with others, up to [`TOGETHER`] later.
    pub fn ask(&mut self, priority: Priority, uid: &Arc<str>, at: Instant) {
        let at = if priority == Priority::Renewal { self.together(at) } else { at };
        let Waiting { by_time, jobs } = &mut self.lanes[priority as usize];
        let job = jobs.entry(Arc::clone(uid)).or_default();
        let earlier = job.at.is_none_or(|before| at < before);
        if !earlier {
            return;
        }
        if !job.handed_out {
            if let Some(before) = job.at {
                by_time.remove(&(before, Arc::clone(uid)));
            }
            by_time.insert((at, Arc::clone(uid)));
        }
        job.at = Some(at);
    }

    /// Forgets a job that is not handed out, and what was asked for meanwhile of one that is.
    pub fn cancel(&mut self, priority: Priority, uid: &Arc<str>) {
        let Waiting { by_time, jobs } = &mut self.lanes[priority as usize];
        let Some(job) = jobs.get_mut(uid) else { return };
        if job.handed_out {
            job.at = None;
            return;
        }
        if let Some(at) = job.at {
            by_time.remove(&(at, Arc::clone(uid)));
        }
        jobs.remove(uid);
    }

    /// Hands out the job that should be done first, if one is due.
    ///
    /// The longest due goes first, whatever it is; but a renewal has time until it is very late, and then goes before all
    /// others: no backlog lets a Lease run out, nor is one renewed more often than it must be while there is other work.
    /// What is prompt goes before all of that.
    pub fn next(&mut self, now: Instant, load: Pressure) -> Option<Job> {
        let head = |priority: Priority| {
            let (at, _) = self.lanes[priority as usize].by_time.first()?;
            Some((*at, priority)).filter(|(at, _)| *at <= now)
        };
        let renewal = head(Priority::Renewal);
        let pressing = renewal.filter(|(due, _)| now.duration_since(*due) >= self.renewal_slack);
        let (due, priority) = head(Priority::Prompt).or(pressing).or_else(|| {
            let others =
                LANES.into_iter().filter(|priority| *priority != Priority::Renewal && load.lets(*priority));
            let other = others.filter_map(head).min_by_key(|(due, _)| *due);
            other.or_else(|| renewal.filter(|_| load.lets(Priority::Renewal)))
        })?;
        let Waiting { by_time, jobs } = &mut self.lanes[priority as usize];
        let (_, uid) = by_time.pop_first()?;
        jobs.insert(Arc::clone(&uid), State { at: None, handed_out: true });
        Some(Job { priority, uid, due })
    }

    /// A job that was handed out is over; what was asked for meanwhile waits from now on.
    pub fn done(&mut self, priority: Priority, uid: &Arc<str>) {
        let Waiting { by_time, jobs } = &mut self.lanes[priority as usize];
        if let Some(State { at: Some(at), .. }) = jobs.remove(uid) {
            by_time.insert((at, Arc::clone(uid)));
            jobs.insert(Arc::clone(uid), State { at: Some(at), handed_out: false });
        }
    }

    /// The first time from `at` on at which renewals go; those of a process before keep their order.
    fn together(&self, at: Instant) -> Instant {
        let Some(since) = at.checked_duration_since(self.start) else { return at };
        let turns = since.as_nanos().div_ceil(TOGETHER.as_nanos());
        self.start + TOGETHER.saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX))
    }

    /// When the next job would be handed out if `load` stayed as it is; None when none would be.
    #[must_use]
    pub fn next_due(&self, load: Pressure) -> Option<Instant> {
        let due = |priority: Priority| {
            let (at, _) = self.lanes[priority as usize].by_time.first()?;
            match priority {
                priority if load.lets(priority) => Some(*at),
                Priority::Renewal => Some(*at + self.renewal_slack),
                _ => None,
            }
        };
        LANES.into_iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    /// What is left where the next one begins 15 s later.
    const SLACK: Duration = secs(10);

    fn begun() -> (Schedule, Instant) {
        let start = Instant::now();
        (Schedule::new(start, secs(15)), start)
    }

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn pods_and_late_renewals_go_where_machines_have_no_room() {
        let (mut schedule, start) = begun();
        for (priority, name) in
            [(Priority::Status, "machine"), (Priority::Lease, "machine"), (Priority::Renewal, "lease")]
        {
            schedule.ask(priority, &uid(name), start);
        }
        let full = Pressure::Machines;
        assert_eq!(schedule.next(start, full), None);
        assert_eq!(schedule.next_due(full), Some(start + SLACK));
        schedule.ask(Priority::Pod, &uid("pod"), start + secs(1));
        assert_eq!(schedule.next_due(full), Some(start + secs(1)));
        let late = start + SLACK;
        let order: Vec<Priority> =
            std::iter::from_fn(|| schedule.next(late, full)).map(|job| job.priority).collect();
        assert_eq!(order, [Priority::Renewal, Priority::Pod]);
        assert_eq!(schedule.next_due(full), None);
    }

    #[test]
    fn what_is_prompt_waits_for_nothing_but_its_time() {
        let (mut schedule, start) = begun();
        for (priority, at) in
            [(Priority::Pod, 0), (Priority::Lease, 0), (Priority::Renewal, 0), (Priority::Prompt, 11)]
        {
            schedule.ask(priority, &uid("a"), start + secs(at));
        }
        let mut next = |at| schedule.next(start + secs(at), Pressure::Machines).map(|job| job.priority);
        assert_eq!(
            [next(11), next(11), next(11)],
            [Priority::Prompt, Priority::Renewal, Priority::Pod].map(Some)
        );
        schedule.ask(Priority::Prompt, &uid("b"), start + secs(12));
        assert_eq!(schedule.next_due(Pressure::Machines), Some(start + secs(12)));
    }

    #[test]
    fn the_earliest_asked_for_time_wins() {
        let (mut schedule, start) = begun();
        for at in [5, 2, 9] {
            schedule.ask(Priority::Pod, &uid("a"), start + secs(at));
        }
        assert_eq!(schedule.next_due(Pressure::Light), Some(start + secs(2)));
        assert_eq!(schedule.next(start + secs(1), Pressure::Light), None);
        assert_eq!(schedule.next(start + secs(9), Pressure::Light).map(|job| job.due), Some(start + secs(2)));
        assert_eq!(schedule.next(start + secs(9), Pressure::Light), None);
    }

    #[test]
    fn a_job_that_is_handed_out_waits_for_its_end() {
        let ((mut schedule, start), a) = (begun(), uid("a"));
        schedule.ask(Priority::Status, &a, start);
        assert!(schedule.next(start, Pressure::Light).is_some());
        schedule.ask(Priority::Status, &a, start);
        assert_eq!((schedule.next(start, Pressure::Light), schedule.next_due(Pressure::Light)), (None, None));
        schedule.done(Priority::Status, &a);
        assert!(schedule.next(start, Pressure::Light).is_some());
        schedule.cancel(Priority::Status, &a);
        schedule.done(Priority::Status, &a);
        assert!(
            schedule.lanes.iter().all(|priority| priority.jobs.is_empty() && priority.by_time.is_empty())
        );
    }

    #[test]
    fn a_renewal_lets_others_go_first_until_it_is_very_late() {
        let (mut schedule, start) = begun();
        for lease in ["a", "b", "c"] {
            schedule.ask(Priority::Renewal, &uid(lease), start + secs(1));
        }
        for (priority, at) in [(Priority::Pod, 4), (Priority::Lease, 3), (Priority::Status, 5)] {
            schedule.ask(priority, &uid("d"), start + secs(at));
        }
        let mut next = |at, load| schedule.next(start + secs(at), load).map(|job| job.priority);
        let (light, heavy) = (Pressure::Light, Pressure::Heavy);
        assert_eq!([next(5, light), next(5, heavy)], [Priority::Lease, Priority::Pod].map(Some));
        assert_eq!([next(11, heavy), next(10, light)], [Priority::Renewal, Priority::Status].map(Some));
        assert_eq!([next(10, heavy), next(10, light)], [None, Some(Priority::Renewal)]);
        assert_eq!(schedule.next_due(heavy), Some(start + secs(11)));
        assert_eq!(schedule.next_due(light), Some(start + secs(1)));
    }

    /// By the time until another process begins: at which age a Lease is renewed whatever else is due, in seconds.
    #[test]
    fn what_waited_outlasts_a_takeover() {
        for (vacancy, oldest) in [(5, 30), (10, 25), (15, 20), (20, 15), (25, 10), (60, 10)] {
            let start = Instant::now();
            let mut schedule = Schedule::new(start, secs(vacancy));
            schedule.ask(Priority::Renewal, &uid("a"), start + RENEW);
            let late = schedule.next_due(Pressure::Machines);
            assert_eq!(late, Some(start + secs(oldest)));
            assert!(schedule.next(start + secs(oldest), Pressure::Machines).is_some());
            assert!(vacancy > 25 || secs(oldest + vacancy) < LEASE_FRESH);
        }
    }

    #[test]
    fn renewals_go_together() {
        let (mut schedule, start) = begun();
        let at = |millis| start + Duration::from_millis(millis);
        for (lease, due) in [("a", 20), ("b", 99), ("c", 100), ("d", 101)] {
            schedule.ask(Priority::Renewal, &uid(lease), at(due));
        }
        assert_eq!(schedule.next_due(Pressure::Light), Some(at(100)));
        let handed_out = std::iter::from_fn(|| schedule.next(at(100), Pressure::Light)).count();
        assert_eq!((handed_out, schedule.next_due(Pressure::Light)), (3, Some(at(200))));
        let before = start.checked_sub(secs(7)).unwrap();
        schedule.ask(Priority::Renewal, &uid("e"), before);
        assert_eq!(schedule.next_due(Pressure::Light), Some(before));
    }

    proptest! {
        /// Whatever is asked for is handed out once, in time, in order.
        #[test]
        fn nothing_is_lost(asked in prop::collection::vec((0..LANES.len(), 0_u8..20, 0_u64..1_000), 0..100)) {
            let (mut schedule, start) = begun();
            let mut wanted = HashMap::new();
            for (priority, name, mut at) in asked {
                if LANES[priority] == Priority::Renewal {
                    at = at.next_multiple_of(100);
                }
                schedule.ask(LANES[priority], &uid(&name.to_string()), start + Duration::from_millis(at));
                let earliest = wanted.entry((priority, name.to_string())).or_insert(at);
                *earliest = at.min(*earliest);
            }
            let mut last = start;
            while let Some(due) = schedule.next_due(Pressure::Light) {
                let job = schedule.next(due, Pressure::Light).expect("it is due");
                prop_assert!(job.due >= last);
                last = job.due;
                let at = wanted.remove(&(job.priority as usize, job.uid.to_string()));
                prop_assert_eq!(at.map(Duration::from_millis), Some(job.due - start));
                schedule.done(job.priority, &job.uid);
            }
            prop_assert!(wanted.is_empty());
        }
    }
}
