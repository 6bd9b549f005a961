//! Faults of a schedule: the classes that its seed switches on, until which time, and the one fault that a systematic
//! run puts at one write.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use http::Method;
use kube_node_testing::api_server::Random;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{fault::Fault, schedule::Schedule};

/// Longest delay of each frame of a watch without faults.
const USUAL_LAG: Duration = Duration::from_millis(20);
/// Longest time for which a watch shows nothing.
const FREEZE: Duration = Duration::from_mins(1);

/// Time within which the lists begin that follow the end of a watch, one that shows late that its version is too old included.
const LISTS_BEGIN: Duration = Duration::from_secs(6);

/// What happens at a scale request that is carried out late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtScaleRequest {
    /// No request is answered for this time.
    Silence(Duration),
    /// The process is killed, and its request arrives right before the next one.
    Kill,
}

/// Field of revisions that a newer release writes.
pub const NEWER_FIELD: &str = "ofANewerRelease";

/// What a webhook does to each write to one Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Webhook {
    /// It answers with an error.
    Fails,
    /// It takes seconds.
    IsSlow,
}

/// Faults of one schedule.
#[derive(Debug)]
pub struct Faults {
    pub seed: u64,
    /// Classes that happen at random.
    pub classes: BTreeSet<Fault>,
    /// Time after which none of them happens.
    pub until: Instant,
    /// The fault of one write, by its number.
    pub single: Option<(u64, Fault)>,
    /// True if faults are frequent.
    pub storm: bool,
    /// Most objects in one answer to a list.
    pub page: Option<usize>,
    /// True if requests, answers and watches take no time.
    is_instant: bool,
    /// Numbers of random faults that do not happen.
    spared: BTreeSet<u64>,
    /// Methods of the writes so far.
    writes: Mutex<Vec<Method>>,
    /// Number of random faults so far.
    happened: AtomicU64,
    /// The Node to which an admission policy refuses all writes of the operators.
    refused: Mutex<Option<String>>,
    /// The Node that a webhook is called for, and until when.
    webhook: Mutex<Option<(String, Webhook, Instant)>>,
    /// Until when a newer release writes the revisions.
    upgraded: Mutex<Option<Instant>>,
    /// Resource that the processes may not write, and until when.
    forbidden: Mutex<Option<(&'static str, Instant)>>,
    /// Resource of which all watches show everything late, and by how much.
    late: Mutex<Option<(&'static str, Duration)>>,
    /// Until when no request is answered, or none for one resource.
    outage: Mutex<Option<(Option<&'static str>, Instant)>>,
    /// What happens at the next scale request.
    at_scale_request: Mutex<Option<AtScaleRequest>>,
    /// Tells that all watches of the operators end.
    relists: watch::Sender<()>,
    /// Until when the operators' lists of Nodes take longer, and by how much.
    slow_lists: Mutex<Option<(Instant, Duration)>>,
    /// Tells the request of a process that was killed that the next scale request is about to arrive.
    pub overtaken: Notify,
}

impl Faults {
    /// The faults of a schedule, until a time.
    pub fn new(schedule: &Schedule, until: Instant) -> Self {
        let Schedule { seed, faults, single, storm, page, spared, is_instant, .. } = schedule.clone();
        let (writes, happened, refused, webhook, upgraded, forbidden) = <_>::default();
        let (late, outage, at_scale_request, slow_lists) = <_>::default();
        Self {
            seed,
            classes: faults,
            until,
            single,
            storm,
            page,
            is_instant,
            spared,
            writes,
            happened,
            refused,
            webhook,
            upgraded,
            forbidden,
            late,
            outage,
            at_scale_request,
            relists: watch::Sender::new(()),
            slow_lists,
            overtaken: Notify::new(),
        }
    }

    /// Takes the right to write a resource from all processes, for a time.
    pub fn forbid(&self, resource: &'static str, time: Duration) {
        *self.forbidden.lock() = Some((resource, self.until.min(Instant::now() + time)));
    }

    /// Delays what the watches of this resource of the core group, or of ours, show.
    pub fn delay(&self, resource: &'static str, time: Duration) {
        *self.late.lock() = Some((resource, time));
    }

    /// Delay of what a watch of this path shows.
    pub fn late(&self, path: &str) -> Duration {
        let late = self.late.lock().filter(|_| Instant::now() < self.until);
        let resource = ["/api/v1/", "/apis/kube-node.io/v1alpha1/"]
            .into_iter()
            .find_map(|group| path.strip_prefix(group));
        let late = late.filter(|(late, _)| resource == Some(*late));
        late.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// Ends all watches of the operators. The answers to lists of Nodes that begin now take so long.
    pub fn relist(&self, time: Duration) {
        *self.slow_lists.lock() = Some((Instant::now() + LISTS_BEGIN, time));
        self.relists.send_replace(());
    }

    /// Tells when the watches of the operators end.
    pub fn relists(&self) -> watch::Receiver<()> {
        self.relists.subscribe()
    }

    /// Time that the answer to an operator's list of this path takes longer.
    pub fn list_delay(&self, path: &str) -> Duration {
        let slow =
            self.slow_lists.lock().filter(|(until, _)| path == "/api/v1/nodes" && Instant::now() < *until);
        slow.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// Answers no request for a time, or none for one resource. A quarter of the writes is carried out nevertheless, half of
    /// them later.
    pub fn fall_silent(&self, resource: Option<&'static str>, time: Duration) {
        *self.outage.lock() = Some((resource, self.until.min(Instant::now() + time)));
    }

    /// Returns true if no request to this path is answered.
    fn is_silent(&self, path: &str) -> bool {
        let outage = self.outage.lock().filter(|(_, until)| Instant::now() < *until);
        outage.is_some_and(|(resource, _)| resource.is_none_or(|resource| is_of(path, resource)))
    }

    /// Says what happens at the next scale request, which is carried out late.
    pub fn at_scale_request(&self, happens: AtScaleRequest) {
        *self.at_scale_request.lock() = Some(happens);
    }

    /// What happens at this scale request, if anything.
    pub fn take_scale_request(&self) -> Option<AtScaleRequest> {
        let happens = self.at_scale_request.lock().take().filter(|_| Instant::now() < self.until)?;
        if let AtScaleRequest::Silence(time) = happens {
            self.fall_silent(None, time);
        }
        Some(happens)
    }

    /// Returns true if nobody may write to this path.
    pub fn is_forbidden(&self, path: &str) -> bool {
        let forbidden = self.forbidden.lock().filter(|(_, until)| Instant::now() < *until);
        forbidden.is_some_and(|(resource, _)| is_of(path, resource))
    }

    /// Refuses all writes to a Node, or to none.
    pub fn refuse(&self, node: Option<String>) {
        *self.refused.lock() = node;
    }

    /// The Node to which writes are refused.
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// Returns true if writes to this path are refused. The status stays its kubelet's: a Node that is not Ready
    /// would spend the budget of its set.
    pub fn is_refused(&self, path: &str) -> bool {
        let node = path.strip_prefix("/api/v1/nodes/");
        node.is_some_and(|node| self.refused.lock().as_deref() == Some(node))
    }

    /// Calls a webhook for each write to a Node, for a time.
    pub fn call_webhook(&self, node: String, webhook: Webhook, time: Duration) {
        *self.webhook.lock() = Some((node, webhook, self.until.min(Instant::now() + time)));
    }

    /// The webhook that is called for writes to this path.
    pub fn webhook(&self, path: &str) -> Option<Webhook> {
        let webhook = self.webhook.lock();
        let (node, webhook, _) = webhook.as_ref().filter(|(_, _, until)| Instant::now() < *until)?;
        (path.strip_prefix("/api/v1/nodes/") == Some(node)).then_some(*webhook)
    }

    /// Lets a newer release write the revisions, for a time.
    pub fn upgrade(&self, time: Duration) {
        *self.upgraded.lock() = Some(Instant::now() + time);
    }

    /// The body of a write as the present release sends it.
    pub fn released(&self, path: &str, body: &[u8]) -> Vec<u8> {
        let is_newer = self.upgraded.lock().is_some_and(|until| Instant::now() < until);
        if is_newer
            && path.ends_with("/controllerrevisions")
            && let Ok(mut revision) = serde_json::from_slice::<Value>(body)
        {
            revision["data"][NEWER_FIELD] = json!({ "field": true });
            return revision.to_string().into_bytes();
        }
        body.to_vec()
    }

    /// Methods of the writes that all processes sent.
    pub fn writes(&self) -> Vec<Method> {
        self.writes.lock().clone()
    }

    /// Number of random faults that have happened, or were spared.
    pub fn happened(&self) -> u64 {
        self.happened.load(Ordering::Relaxed)
    }

    /// Returns true if the next random fault happens.
    fn happens(&self) -> bool {
        !self.spared.contains(&self.happened.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns true if no fault has happened for this time, or will.
    pub fn is_over_for(&self, time: Duration) -> bool {
        Instant::now() > self.until + time || self.classes.is_empty() && self.single.is_none()
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.classes.contains(&fault) && Instant::now() < self.until
    }

    /// The fault of a request, if any.
    pub fn of_request(
        &self,
        draws: &mut Random,
        (method, path): (&Method, &str),
        is_write: bool,
        is_watch: bool,
    ) -> Option<Fault> {
        if is_write {
            let mut writes = self.writes.lock();
            writes.push(method.clone());
            let number = writes.len() as u64 - 1;
            if let Some((_, fault)) =
                self.single.filter(|(at, fault)| *at == number && fault.fits(method, true))
            {
                return Some(fault);
            }
        }
        let mut apart = draws.apart(0xc07);
        let numbers: [(Fault, u64); Fault::ALL.len()] = std::array::from_fn(|at| {
            (Fault::ALL[at], if at < Fault::FIRST { draws.number() } else { apart.number() })
        });
        if !is_watch && self.is_silent(path) {
            let silent = [Fault::LostRequest, Fault::LostAnswer, Fault::DoneLater, Fault::DoneLater];
            return Some(silent[usize::try_from(numbers[0].1 % if is_write { 4 } else { 1 }).unwrap()]);
        }
        let of_requests =
            numbers.into_iter().filter(|(fault, _)| !Fault::OF_WATCHES.contains(fault) && !is_watch);
        of_requests
            .filter(|(fault, number)| self.has(*fault) && number % fault.one_in(self.storm) == 0)
            .map(|(fault, _)| fault)
            .find(|fault| fault.fits(method, is_write))
            .filter(|_| self.happens())
    }

    /// Number of bytes of these that arrive before the connection is cut, if it is.
    pub fn cut(&self, draws: &mut Random, bytes: usize) -> Option<usize> {
        let is_cut = self.has(Fault::CutAnswer)
            && draws.number().is_multiple_of(Fault::CutAnswer.one_in(self.storm))
            && self.happens();
        is_cut.then(|| draws.below(bytes.max(1)))
    }

    /// Limit of a delay: a millisecond, which no draw reaches, if nothing takes time. The draws stay the same.
    pub fn limit(&self, usual: Duration) -> Duration {
        if self.is_instant { Duration::from_millis(1) } else { usual }
    }

    /// Longest delay of each frame of a watch that begins now, as long as there are faults.
    pub fn lag(&self, draws: &mut Random) -> Duration {
        let lag = Duration::from_millis([0, 100, 1_000, 5_000][usize::try_from(draws.number() % 4).unwrap()]);
        self.limit(if self.has(Fault::Lag) { lag } else { USUAL_LAG })
    }

    /// Longest delay of the next frame of a watch with this lag: a lag ends with the faults, and the watch need not.
    pub fn lag_of_frame(&self, lag: Duration) -> Duration {
        if Instant::now() < self.until { lag } else { lag.min(self.limit(USUAL_LAG)) }
    }

    /// Time for which a watch shows nothing.
    pub fn freeze(&self, draws: &mut Random) -> Duration {
        let one_in = if self.storm { 5 } else { 30 };
        let freezes = draws.number().is_multiple_of(one_in) && self.has(Fault::Frozen) && self.happens();
        // One freeze may follow another.
        let longest = if self.storm { FREEZE / 2 } else { FREEZE };
        Duration::from_secs(if freezes { draws.number() % longest.as_secs() } else { 0 })
    }

    /// When the last watch that froze goes on.
    pub fn watches_end(&self) -> Instant {
        self.until + if self.classes.contains(&Fault::Frozen) { FREEZE } else { Duration::ZERO }
    }

    /// Life of a watch, if it ends before its time.
    pub fn end_of_watch(&self, draws: &mut Random) -> Option<Duration> {
        self.has(Fault::Ended).then(|| Duration::from_millis(draws.number() % 30_000))
    }
}

/// Returns true if a path is of this resource.
fn is_of(path: &str, resource: &str) -> bool {
    path.split('/').any(|part| part == resource)
}
