//! A work queue of keys: each at most once at a time, at most once waiting, the earliest asked-for time wins.
//!
//! kube's scheduler holds the waiting keys; this adds concurrency, a least distance between two looks at one key
//! (a set of thousands changes with each of its Nodes) and a back-off per key that a success resets.

use std::{
    collections::{HashMap, HashSet},
    future::{Future, poll_fn},
    hash::Hash,
    pin::pin,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// First wait after a failure; it doubles with each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Longest wait after a failure.
const BACKOFF_LONGEST: Duration = Duration::from_mins(1);

/// How a look at a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Done,
    /// Look again after this time at the latest.
    After(Duration),
    /// It failed: look again after the key's back-off.
    Failed,
}

/// Asks for looks at keys. Cheap to clone; asking for a key that is waiting already costs nothing more.
#[derive(Clone, Debug)]
pub struct Requests<K> {
    sender: mpsc::UnboundedSender<K>,
}

impl<K> Requests<K> {
    /// Asks for a look at `key` as soon as may be. Without effect once the queue has ended.
    pub fn add(&self, key: K) {
        // The queue has ended only because the process is ending: nobody is left to miss the look.
        let _ = self.sender.send(key);
    }
}

/// The receiving end, to be given to [`run`].
#[derive(Debug)]
pub struct Queue<K> {
    receiver: mpsc::UnboundedReceiver<K>,
}

/// A queue and the handle that fills it.
#[must_use]
pub fn queue<K>() -> (Requests<K>, Queue<K>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Requests { sender }, Queue { receiver })
}

/// How a queue is worked off.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Most keys looked at at once, at least 1.
    pub concurrency: usize,
    /// Least time between the starts of two looks at one key; zero for none.
    pub least_distance: Duration,
}

/// Works the queue off until `stop`, or until every [`Requests`] is dropped; looks under way are finished.
pub async fn run<K, F, Fut>(queue: Queue<K>, pace: Pace, stop: &CancellationToken, look: F)
where
    K: Eq + Hash + Clone,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let Queue { mut receiver } = queue;
    let (schedule, requests) = mpsc::unbounded_channel::<ScheduleRequest<K>>();
    let requests =
        futures::stream::unfold(requests, async |mut requests| requests.recv().await.map(|r| (r, requests)));
    let mut waiting = pin!(scheduler(requests));
    let mut active: HashSet<K> = HashSet::new();
    let mut running = FuturesUnordered::new();
    let mut last_start: HashMap<K, Instant> = HashMap::new();
    let mut failures: HashMap<K, u32> = HashMap::new();
    // The scheduler lives as long as this function, so the send cannot fail.
    let ask = |message: K, run_at: Instant| drop(schedule.send(ScheduleRequest { message, run_at }));

    loop {
        let room = running.len() < pace.concurrency.max(1);
        tokio::select! {
            () = stop.cancelled() => break,
            request = receiver.recv() => match request {
                None => break,
                Some(key) => {
                    let now = Instant::now();
                    let earliest = last_start.get(&key).map_or(now, |start| *start + pace.least_distance);
                    ask(key, earliest.max(now));
                }
            },
            Some((key, outcome)) = running.next(), if !running.is_empty() => {
                active.remove(&key);
                let again = match outcome {
                    Outcome::Done => None,
                    Outcome::After(delay) => Some(delay),
                    Outcome::Failed => {
                        let count = failures.entry(key.clone()).or_default();
                        *count = count.saturating_add(1);
                        Some(backoff(*count))
                    }
                };
                if outcome != Outcome::Failed {
                    failures.remove(&key);
                }
                match again {
                    Some(delay) => ask(key, Instant::now() + delay),
                    // Without a distance to keep, the time of its start is of no more use.
                    None if pace.least_distance.is_zero() => { last_start.remove(&key); }
                    None => {}
                }
            },
            Some(key) = poll_fn(|cx| {
                waiting.as_mut().hold_unless(|key| room && !active.contains(key)).poll_next_unpin(cx)
            }) => {
                active.insert(key.clone());
                if !pace.least_distance.is_zero() {
                    last_start.insert(key.clone(), Instant::now());
                }
                let future = look(key.clone());
                running.push(async move { (key, future.await) });
            },
        }
    }
    while running.next().await.is_some() {}
}

/// The wait after the `count`th failure in a row.
fn backoff(count: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(count.saturating_sub(1))).min(BACKOFF_LONGEST)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use tokio::time::{sleep, timeout};

    use super::*;

    const PACE: Pace = Pace { concurrency: 2, least_distance: Duration::ZERO };

    /// Starts of looks, with the time since the beginning of the test.
    type Log = Rc<RefCell<Vec<(&'static str, Duration)>>>;

    /// Runs the queue for `seconds` of simulated time while `script` fills it.
    async fn simulate<Fut: Future<Output = Outcome>>(
        pace: Pace,
        seconds: u64,
        look: impl Fn(&'static str) -> Fut,
        script: impl AsyncFnOnce(Requests<&'static str>),
    ) -> Log {
        let begin = Instant::now();
        let log = Log::default();
        let (requests, queue) = queue();
        let record = |key| {
            log.borrow_mut().push((key, begin.elapsed()));
            look(key)
        };
        let never = CancellationToken::new();
        let worked = async {
            tokio::join!(script(requests.clone()), run(queue, pace, &never, record));
        };
        assert!(
            timeout(Duration::from_secs(seconds), worked).await.is_err(),
            "a queue with a handle left does not end"
        );
        drop(requests);
        log.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_looked_at_twice_at_once() {
        let log = simulate(
            PACE,
            60,
            async |_| {
                sleep(Duration::from_secs(5)).await;
                Outcome::Done
            },
            async |requests| {
                requests.add("a");
                sleep(Duration::from_secs(1)).await;
                requests.add("a");
                requests.add("a");
            },
        )
        .await;
        let starts: Vec<u64> = log.borrow().iter().map(|(_, at)| at.as_secs()).collect();
        assert_eq!(starts, [0, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_to_stop_finishes_what_is_begun() {
        let ((requests, queue), stop) = (queue(), CancellationToken::new());
        for key in ["a", "b", "c"] {
            requests.add(key);
        }
        let ended = RefCell::new(Vec::new());
        let look = async |key| {
            sleep(Duration::from_secs(5)).await;
            ended.borrow_mut().push(key);
            Outcome::Done
        };
        let script = async {
            sleep(Duration::from_secs(1)).await;
            stop.cancel();
        };
        let begin = Instant::now();
        tokio::join!(run(queue, PACE, &stop, look), script);
        assert_eq!((ended.borrow().len(), begin.elapsed().as_secs()), (2, 5), "the third has not begun");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_is_bounded() {
        let log = simulate(
            PACE,
            60,
            async |_| {
                sleep(Duration::from_secs(5)).await;
                Outcome::Done
            },
            async |requests| ["a", "b", "c", "d"].into_iter().for_each(|key| requests.add(key)),
        )
        .await;
        let starts: Vec<u64> = log.borrow().iter().map(|(_, at)| at.as_secs()).collect();
        assert_eq!(starts, [0, 0, 5, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_steady_stream_neither_starves_nor_floods() {
        let pace = Pace { least_distance: Duration::from_secs(1), ..PACE };
        let log = simulate(
            pace,
            11,
            async |_| Outcome::Done,
            async |requests| {
                for _ in 0..100 {
                    requests.add("a");
                    sleep(Duration::from_millis(100)).await;
                }
            },
        )
        .await;
        let looks = log.borrow().len();
        assert!((9..=11).contains(&looks), "{looks} looks in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_other_keys_go_on() {
        let log = simulate(
            PACE,
            10,
            async |key| {
                if key == "sick" { Outcome::Failed } else { Outcome::After(Duration::from_millis(1_100)) }
            },
            async |requests| ["sick", "well"].into_iter().for_each(|key| requests.add(key)),
        )
        .await;
        let count = |name| log.borrow().iter().filter(|(key, _)| *key == name).count();
        // 0, 0.5, 1.5, 3.5 and 7.5 s
        assert_eq!(count("sick"), 5);
        // 0, 1.1 and so on to 9.9 s
        assert_eq!(count("well"), 10);
    }
}
