//! Schedule of all jobs of all machines and pods, without a timer for each.
//!
//! Invariants: a job is identified by its priority and the UID of its object. It is queued at most once, at
//! the earliest time asked for, and is not handed out again before [`Schedule::done`].

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use kube_node_api::node_lease;
use tokio::time::Instant;

/// Interval of Lease renewals: a quarter of a Lease's lifetime, as in a kubelet.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Time that a process needs after a takeover until it has renewed the oldest Leases.
const TAKEOVER_TIME: Duration = Duration::from_secs(5);

/// Batching interval of Lease renewals. Measured at 5,000 idle nodes: 0.08 cores without batching, 0.045 with
/// it; in kube-apiserver 0.62 against 0.40 (docs/benchmarks.md). A kubelet, too, renews up to 0.4 s later
/// than each 10 s (jitter of 0.04, component-helpers' lease controller).
const BATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Pressure of the requests under way, which decides the priorities that may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// All due jobs start.
    Light,
    /// Lease renewals wait until they are late.
    Heavy,
    /// Lease creations and node status writes wait too: only pods, events, prompt and late renewals start.
    Machines,
}

impl Pressure {
    /// Returns true if a due job may start now. Late renewals start in any case.
    fn allows(self, priority: Priority) -> bool {
        match self {
            Self::Light => true,
            Self::Heavy => priority != Priority::Renewal,
            Self::Machines => matches!(priority, Priority::Prompt | Priority::Pod | Priority::Event),
        }
    }
}

/// Kind and priority of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Lease renewal that waits for no other job: of unknown age, after a failure, or by a dedicated client.
    Prompt,
    /// Creation of a machine's Lease.
    Lease,
    /// Renewal of a Lease that this process or an earlier one renewed before.
    Renewal,
    /// Sync of a machine's node status.
    Status,
    /// Sync of a pod.
    Pod,
    /// Sending of queued events; one job for all of them.
    Event,
    /// Creation of a machine's `CSINode`.
    CsiNode,
}

const PRIORITIES: [Priority; 7] = [
    Priority::Prompt,
    Priority::Lease,
    Priority::Renewal,
    Priority::Status,
    Priority::Pod,
    Priority::Event,
    Priority::CsiNode,
];

/// A due job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Kind and priority of the job.
    pub priority: Priority,
    /// UID of the object.
    pub uid: Arc<str>,
    /// Time since which the job is due.
    pub due: Instant,
}

/// All jobs, queued or handed out.
pub struct Schedule {
    /// Origin of the batching intervals.
    start: Instant,
    /// Delay from which on a renewal precedes every other job.
    renewal_slack: Duration,
    queues: [Queue; PRIORITIES.len()],
}

#[derive(Default)]
struct Queue {
    /// Queued jobs by due time; jobs handed out are not in here.
    by_time: BTreeSet<(Instant, Arc<str>)>,
    jobs: HashMap<Arc<str>, JobState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct JobState {
    at: Option<Instant>,
    in_progress: bool,
}

impl Schedule {
    /// Creates an empty schedule. A Lease whose renewal gave way to other jobs must outlast the death of this
    /// process plus the failover delay `failover_delay`, after which another process starts to renew.
    pub fn new(start: Instant, failover_delay: Duration) -> Self {
        let renewal_slack = node_lease::DURATION
            .saturating_sub(failover_delay.saturating_add(RENEW_INTERVAL + TAKEOVER_TIME));
        Self { start, renewal_slack, queues: Default::default() }
    }

    /// Queues a job for `at` or an earlier time already asked for. A renewal is batched, up to [`BATCH_INTERVAL`]
    /// later.
    pub fn enqueue(&mut self, priority: Priority, uid: &Arc<str>, at: Instant) {
        let at = if priority == Priority::Renewal { self.batched(at) } else { at };
        let Queue { by_time, jobs } = &mut self.queues[priority as usize];
        let job = jobs.entry(Arc::clone(uid)).or_default();
        if job.at.is_some_and(|before| before <= at) {
            return;
        }
        if !job.in_progress {
            if let Some(before) = job.at {
                by_time.remove(&(before, Arc::clone(uid)));
            }
            by_time.insert((at, Arc::clone(uid)));
        }
        job.at = Some(at);
    }

    /// Removes a queued job. Of a job handed out, removes only the request to run it again.
    pub fn cancel(&mut self, priority: Priority, uid: &Arc<str>) {
        let Queue { by_time, jobs } = &mut self.queues[priority as usize];
        let Some(job) = jobs.get_mut(uid) else { return };
        let at = job.at.take();
        if let Some(at) = at.filter(|_| !job.in_progress) {
            by_time.remove(&(at, Arc::clone(uid)));
            jobs.remove(uid);
        }
    }

    /// Hands out the next due job.
    ///
    /// Order: prompt renewals; renewals late by `renewal_slack`; the job due for longest, whatever its kind;
    /// other renewals. So no backlog lets a Lease expire, and while there is other work no Lease is renewed
    /// more often than necessary.
    pub fn next(&mut self, now: Instant, pressure: Pressure) -> Option<Job> {
        let head = |priority: Priority| {
            let (at, _) = self.queues[priority as usize].by_time.first()?;
            Some((*at, priority)).filter(|(at, _)| *at <= now)
        };
        let renewal = head(Priority::Renewal);
        let pressing = renewal.filter(|(due, _)| now.duration_since(*due) >= self.renewal_slack);
        let (due, priority) = head(Priority::Prompt).or(pressing).or_else(|| {
            let others = PRIORITIES
                .into_iter()
                .filter(|priority| *priority != Priority::Renewal && pressure.allows(*priority));
            let other = others.filter_map(head).min_by_key(|(due, _)| *due);
            other.or_else(|| renewal.filter(|_| pressure.allows(Priority::Renewal)))
        })?;
        let Queue { by_time, jobs } = &mut self.queues[priority as usize];
        let (_, uid) = by_time.pop_first()?;
        jobs.insert(Arc::clone(&uid), JobState { at: None, in_progress: true });
        Some(Job { priority, uid, due })
    }

    /// Completes a job that was handed out; a time asked for meanwhile is queued now.
    pub fn done(&mut self, priority: Priority, uid: &Arc<str>) {
        let Queue { by_time, jobs } = &mut self.queues[priority as usize];
        if let Some(JobState { at: Some(at), .. }) = jobs.remove(uid) {
            by_time.insert((at, Arc::clone(uid)));
            jobs.insert(Arc::clone(uid), JobState { at: Some(at), in_progress: false });
        }
    }

    /// First batch time at or after `at`. Earlier times, from Leases of an earlier process, keep their order.
    fn batched(&self, at: Instant) -> Instant {
        let Some(since) = at.checked_duration_since(self.start) else { return at };
        let intervals = since.as_nanos().div_ceil(BATCH_INTERVAL.as_nanos());
        self.start + BATCH_INTERVAL.saturating_mul(u32::try_from(intervals).unwrap_or(u32::MAX))
    }

    /// Time at which the next job would be handed out under an unchanged `pressure`; None if none would be.
    pub fn next_due(&self, pressure: Pressure) -> Option<Instant> {
        let due = |priority: Priority| {
            let (at, _) = self.queues[priority as usize].by_time.first()?;
            match priority {
                priority if pressure.allows(priority) => Some(*at),
                Priority::Renewal => Some(*at + self.renewal_slack),
                _ => None,
            }
        };
        PRIORITIES.into_iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    /// Renewal slack with a failover delay of 15 s.
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
            schedule.enqueue(priority, &uid(name), start);
        }
        let full = Pressure::Machines;
        assert_eq!(schedule.next(start, full), None);
        assert_eq!(schedule.next_due(full), Some(start + SLACK));
        schedule.enqueue(Priority::Pod, &uid("pod"), start + secs(1));
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
            schedule.enqueue(priority, &uid("a"), start + secs(at));
        }
        let mut next = |at| schedule.next(start + secs(at), Pressure::Machines).map(|job| job.priority);
        assert_eq!(
            [next(11), next(11), next(11)],
            [Priority::Prompt, Priority::Renewal, Priority::Pod].map(Some)
        );
        schedule.enqueue(Priority::Prompt, &uid("b"), start + secs(12));
        assert_eq!(schedule.next_due(Pressure::Machines), Some(start + secs(12)));
    }

    #[test]
    fn the_earliest_asked_for_time_wins() {
        let (mut schedule, start) = begun();
        for at in [5, 2, 9] {
            schedule.enqueue(Priority::Pod, &uid("a"), start + secs(at));
        }
        assert_eq!(schedule.next_due(Pressure::Light), Some(start + secs(2)));
        assert_eq!(schedule.next(start + secs(1), Pressure::Light), None);
        assert_eq!(schedule.next(start + secs(9), Pressure::Light).map(|job| job.due), Some(start + secs(2)));
        assert_eq!(schedule.next(start + secs(9), Pressure::Light), None);
    }

    #[test]
    fn a_job_that_is_handed_out_waits_for_its_end() {
        let ((mut schedule, start), a) = (begun(), uid("a"));
        schedule.enqueue(Priority::Status, &a, start);
        assert!(schedule.next(start, Pressure::Light).is_some());
        schedule.enqueue(Priority::Status, &a, start);
        assert_eq!((schedule.next(start, Pressure::Light), schedule.next_due(Pressure::Light)), (None, None));
        schedule.done(Priority::Status, &a);
        assert!(schedule.next(start, Pressure::Light).is_some());
        schedule.cancel(Priority::Status, &a);
        schedule.done(Priority::Status, &a);
        assert!(
            schedule.queues.iter().all(|priority| priority.jobs.is_empty() && priority.by_time.is_empty())
        );
    }

    #[test]
    fn a_renewal_lets_others_go_first_until_it_is_very_late() {
        let (mut schedule, start) = begun();
        for lease in ["a", "b", "c"] {
            schedule.enqueue(Priority::Renewal, &uid(lease), start + secs(1));
        }
        for (priority, at) in [(Priority::Pod, 4), (Priority::Lease, 3), (Priority::Status, 5)] {
            schedule.enqueue(priority, &uid("d"), start + secs(at));
        }
        let mut next = |at, pressure| schedule.next(start + secs(at), pressure).map(|job| job.priority);
        let (light, heavy) = (Pressure::Light, Pressure::Heavy);
        assert_eq!([next(5, light), next(5, heavy)], [Priority::Lease, Priority::Pod].map(Some));
        assert_eq!([next(11, heavy), next(10, light)], [Priority::Renewal, Priority::Status].map(Some));
        assert_eq!([next(10, heavy), next(10, light)], [None, Some(Priority::Renewal)]);
        assert_eq!(schedule.next_due(heavy), Some(start + secs(11)));
        assert_eq!(schedule.next_due(light), Some(start + secs(1)));
    }

    /// Failover delay, and the age in seconds at which a Lease is renewed before any other job.
    #[test]
    fn what_waited_outlasts_a_takeover() {
        for (failover_delay, oldest) in [(5, 30), (10, 25), (15, 20), (20, 15), (25, 10), (60, 10)] {
            let start = Instant::now();
            let mut schedule = Schedule::new(start, secs(failover_delay));
            schedule.enqueue(Priority::Renewal, &uid("a"), start + RENEW_INTERVAL);
            let late = schedule.next_due(Pressure::Machines);
            assert_eq!(late, Some(start + secs(oldest)));
            assert!(schedule.next(start + secs(oldest), Pressure::Machines).is_some());
            assert!(failover_delay > 25 || secs(oldest + failover_delay) < node_lease::DURATION);
        }
    }

    #[test]
    fn renewals_go_together() {
        let (mut schedule, start) = begun();
        let at = |millis| start + Duration::from_millis(millis);
        for (lease, due) in [("a", 20), ("b", 99), ("c", 100), ("d", 101)] {
            schedule.enqueue(Priority::Renewal, &uid(lease), at(due));
        }
        assert_eq!(schedule.next_due(Pressure::Light), Some(at(100)));
        let handed_out = std::iter::from_fn(|| schedule.next(at(100), Pressure::Light)).count();
        assert_eq!((handed_out, schedule.next_due(Pressure::Light)), (3, Some(at(200))));
        let before = start.checked_sub(secs(7)).unwrap();
        schedule.enqueue(Priority::Renewal, &uid("e"), before);
        assert_eq!(schedule.next_due(Pressure::Light), Some(before));
    }

    proptest! {
        /// Every queued job is handed out once, on time, in order.
        #[test]
        fn nothing_is_lost(requests in prop::collection::vec((0..PRIORITIES.len(), 0_u8..20, 0_u64..1_000), 0..100)) {
            let (mut schedule, start) = begun();
            let mut wanted = HashMap::new();
            for (priority, name, mut at) in requests {
                if PRIORITIES[priority] == Priority::Renewal {
                    at = at.next_multiple_of(100);
                }
                schedule.enqueue(PRIORITIES[priority], &uid(&name.to_string()), start + Duration::from_millis(at));
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
