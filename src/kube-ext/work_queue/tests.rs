use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
};

use proptest::prelude::*;
use tokio::time::{sleep, timeout};

use super::*;

const CONFIG: Config = Config { concurrency: 2, min_interval: Duration::ZERO };
const SECOND: Duration = Duration::from_secs(1);

/// Starts of reconciliations, with the time since the start of the test.
type Log<K> = Rc<RefCell<Vec<(K, Duration)>>>;

/// Runs a queue for `time` of a paused clock while `script` adds keys.
async fn simulate<K, Fut>(
    config: Config,
    time: Duration,
    reconcile: impl Fn(K, WorkQueue<K>) -> Fut,
    script: impl AsyncFnOnce(WorkQueue<K>),
) -> Vec<(K, Duration)>
where
    K: Copy + Eq + Hash,
    Fut: Future<Output = Action>,
{
    let begin = Instant::now();
    let log = Log::default();
    let (queue, consumer) = work_queue();
    let record = |key| {
        log.borrow_mut().push((key, begin.elapsed()));
        reconcile(key, queue.clone())
    };
    let never = CancellationToken::new();
    let worked = async { tokio::join!(script(queue.clone()), run(consumer, config, &never, record)) };
    assert!(timeout(time, worked).await.is_err(), "a queue ends only when it is told to");
    log.take()
}

fn seconds<K>(log: &[(K, Duration)]) -> Vec<u64> {
    log.iter().map(|(_, at)| at.as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_is_never_reconciled_twice_at_once() {
    let log = simulate(
        CONFIG,
        60 * SECOND,
        async |_, _| {
            sleep(5 * SECOND).await;
            Action::AwaitChange
        },
        async |queue| {
            queue.add("a");
            sleep(SECOND).await;
            queue.add("a");
            queue.add("a");
        },
    )
    .await;
    assert_eq!(seconds(&log), [0, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_queue_finishes_what_is_under_way_and_starts_nothing() {
    let ((queue, consumer), stop) = (work_queue(), CancellationToken::new());
    for key in ["a", "b", "c"] {
        queue.add(key);
    }
    let ended = RefCell::new(Vec::new());
    let reconcile = async |key| {
        sleep(5 * SECOND).await;
        ended.borrow_mut().push(key);
        Action::AwaitChange
    };
    let script = async {
        sleep(SECOND).await;
        stop.cancel();
    };
    let begin = Instant::now();
    tokio::join!(run(consumer, CONFIG, &stop, reconcile), script);
    assert_eq!((ended.take(), begin.elapsed()), (vec!["a", "b"], 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_bounded() {
    let log = simulate(
        CONFIG,
        60 * SECOND,
        async |_, _| {
            sleep(5 * SECOND).await;
            Action::AwaitChange
        },
        async |queue| ["a", "b", "c", "d"].into_iter().for_each(|key| queue.add(key)),
    )
    .await;
    assert_eq!(seconds(&log), [0, 0, 5, 5]);
}

#[tokio::test(start_paused = true)]
async fn under_lasting_overload_keys_start_in_turn() {
    const KEYS: usize = 50;
    // Each key is added again while it runs, so all of them always wait.
    let log = simulate(
        Config { concurrency: 3, ..CONFIG },
        100 * SECOND,
        async |key: usize, queue: WorkQueue<usize>| {
            queue.add(key);
            sleep(SECOND / 10).await;
            if key.is_multiple_of(2) { Action::AwaitChange } else { Action::RequeueAfter(Duration::ZERO) }
        },
        async |queue| (0..KEYS).for_each(|key| queue.add(key)),
    )
    .await;
    let keys: Vec<usize> = log.into_iter().map(|(key, _)| key).collect();
    assert!(keys.len() > 40 * KEYS, "{}", keys.len());
    for (round, started) in keys.chunks_exact(KEYS).enumerate() {
        assert!(started.iter().copied().eq(0..KEYS), "round {round}: {started:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_steady_stream_of_changes_neither_starves_nor_floods() {
    let config = Config { min_interval: SECOND, ..CONFIG };
    let log = simulate(
        config,
        11 * SECOND,
        async |_, _| Action::AwaitChange,
        async |queue| {
            for _ in 0..100 {
                queue.add("a");
                sleep(SECOND / 10).await;
            }
        },
    )
    .await;
    assert!(seconds(&log).into_iter().eq(0..=10), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn no_action_shortens_the_interval() {
    for action in [Action::RequeueAfter(Duration::ZERO), Action::Failed] {
        let config = Config { min_interval: 10 * SECOND, ..CONFIG };
        let log = simulate(
            config,
            39 * SECOND,
            async |_, _| {
                sleep(SECOND / 100).await;
                action
            },
            async |queue| queue.add("a"),
        )
        .await;
        assert_eq!(seconds(&log), [0, 10, 20, 30], "{action:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_and_other_keys_go_on() {
    let log = simulate(
        CONFIG,
        10 * SECOND,
        async |key, _| {
            if key == "failing" { Action::Failed } else { Action::RequeueAfter(Duration::from_millis(1_100)) }
        },
        async |queue| ["failing", "good"].into_iter().for_each(|key| queue.add(key)),
    )
    .await;
    let count = |name| log.iter().filter(|(key, _)| *key == name).count();
    // 0, 0.5, 1.5, 3.5 and 7.5 s
    assert_eq!(count("failing"), 5);
    // 0, 1.1 and so on to 9.9 s
    assert_eq!(count("good"), 10);
}

#[tokio::test(start_paused = true)]
async fn a_change_does_not_wait_for_a_later_requeue_and_a_success_ends_the_back_off() {
    let failures = RefCell::new(3);
    let log = simulate(
        CONFIG,
        60 * SECOND,
        async |_, _| {
            let mut left = failures.borrow_mut();
            *left -= 1;
            if *left == 0 { Action::RequeueAfter(40 * SECOND) } else { Action::Failed }
        },
        async |queue| {
            queue.add("a");
            sleep(20 * SECOND).await;
            queue.add("a");
        },
    )
    .await;
    let millis: Vec<u128> = log.iter().map(|(_, at)| at.as_millis()).collect();
    // The third run succeeds and requeues for 41.5 s; a change comes at 20 s. That run fails and waits for a
    // first backoff.
    assert_eq!(millis[..5], [0, 500, 1_500, 20_000, 20_500]);
}

#[test]
fn keys_are_forgotten_once_nothing_is_known_of_them() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    for key in 0..1_000 {
        schedule.add(key, now);
        assert_eq!(schedule.start(now, SECOND), Some(key));
        schedule.finish(key, Action::AwaitChange, now);
    }
    assert_eq!((schedule.waiting(), schedule.remembered()), (0, 1_000), "their intervals last");
    assert_eq!(schedule.start(now + SECOND, SECOND), None);
    assert_eq!(schedule.remembered(), 0);
    // A key that runs longer than its interval is forgotten when it finishes.
    schedule.add(0, now);
    schedule.start(now, SECOND);
    schedule.start(now + SECOND, SECOND);
    schedule.finish(0, Action::AwaitChange, now + 2 * SECOND);
    assert_eq!(schedule.remembered(), 0);
}

#[test]
fn a_time_no_clock_can_tell_is_a_late_one() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    schedule.add("a", now);
    schedule.start(now, Duration::ZERO);
    schedule.finish("a", Action::RequeueAfter(Duration::MAX), now);
    assert!(schedule.next_due().is_some_and(|due| due > now + Duration::from_hours(24)));
}

/// Operation on a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    Pass(u64),
    Start,
    /// Ends the running key at this index, modulo their number.
    Finish(usize, Action),
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        Just(Action::AwaitChange),
        (0..3_000_u64).prop_map(|after| Action::RequeueAfter(Duration::from_millis(after))),
        Just(Action::RequeueAfter(Duration::ZERO)),
        Just(Action::Failed),
    ];
    prop_oneof![
        3 => (0..12_u8).prop_map(Step::Add),
        1 => (0..2_000_u64).prop_map(Step::Pass),
        3 => Just(Step::Start),
        2 => (any::<usize>(), action).prop_map(|(place, action)| Step::Finish(place, action)),
    ]
}

/// Expected state of one key.
#[derive(Default)]
struct Expected {
    /// Earliest requested start since the last one, with the order of the requests.
    requested: Option<(Instant, usize)>,
    started: Option<Instant>,
    failures: u32,
    /// Keys that started while this one was due and not running.
    overtaken_by: HashSet<u8>,
}

proptest! {
    /// The schedule behaves like a list that is searched from end to end, and no key overtakes another one
    /// twice.
    #[test]
    fn the_first_due_key_starts_and_none_starves(
        steps in prop::collection::vec(step(), 0..400),
        interval in prop_oneof![Just(0_u64), 1..1_500_u64],
    ) {
        let interval = Duration::from_millis(interval);
        let (mut schedule, mut now) = (Schedule::default(), Instant::now());
        let mut expected: HashMap<u8, Expected> = HashMap::new();
        let mut running: Vec<u8> = Vec::new();
        for (order, step) in steps.into_iter().enumerate() {
            match step {
                Step::Pass(millis) => now += Duration::from_millis(millis),
                Step::Add(key) => {
                    schedule.add(key, now);
                    expected.entry(key).or_default().ask(now, order, interval);
                }
                Step::Start => {
                    let first = expected
                        .iter()
                        .filter(|(key, state)| !running.contains(key) && state.requested.is_some_and(|(due, _)| due <= now))
                        .min_by_key(|(_, state)| state.requested)
                        .map(|(key, _)| *key);
                    prop_assert_eq!(schedule.start(now, interval), first);
                    let Some(key) = first else { continue };
                    let state = expected.entry(key).or_default();
                    prop_assert!(state.started.is_none_or(|before| now - before >= interval));
                    (state.requested, state.started) = (None, Some(now));
                    state.overtaken_by.clear();
                    running.push(key);
                    for (other, state) in &mut expected {
                        if !running.contains(other) && state.requested.is_some_and(|(due, _)| due <= now) {
                            prop_assert!(state.overtaken_by.insert(key), "{} twice before {}", key, other);
                        }
                    }
                }
                Step::Finish(place, action) => {
                    let Some(place) = place.checked_rem(running.len()) else { continue };
                    let key = running.swap_remove(place);
                    schedule.finish(key, action, now);
                    let state = expected.entry(key).or_default();
                    state.failures = if action == Action::Failed { state.failures + 1 } else { 0 };
                    let delay = match action {
                        Action::AwaitChange => continue,
                        Action::RequeueAfter(delay) => delay,
                        Action::Failed => Duration::from_millis(500 << state.failures.min(8) >> 1).min(60 * SECOND),
                    };
                    state.ask(now + delay, order, interval);
                }
            }
            let waiting = expected.iter().filter(|(key, state)| state.requested.is_some() && !running.contains(key));
            prop_assert_eq!(schedule.waiting(), waiting.count());
        }
    }
}

impl Expected {
    fn ask(&mut self, due: Instant, order: usize, interval: Duration) {
        let due = self.started.map_or(due, |started| due.max(started + interval));
        self.requested = Some(self.requested.map_or((due, order), |requested| requested.min((due, order))));
    }
}
