use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

const LEASE: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

fn timing() -> Timing {
    Timing::new(LEASE, DEADLINE, RETRY).unwrap()
}

fn at(millis: u64) -> Moment {
    Moment::BEGINNING.after(Duration::from_millis(millis))
}

fn held_by(holder: &str, version: u64) -> LeaseResponse {
    let holder = Some(holder.to_owned()).filter(|holder| !holder.is_empty());
    LeaseResponse::Read(Some(Record { version: version.to_string(), holder, lasts: Some(LEASE) }))
}

/// Asserts the next request at this time and passes the response to the elector.
fn respond(elector: &mut Elector, expected: LeaseRequest, millis: u64, response: LeaseResponse) {
    assert_eq!(elector.next(at(millis)), ElectorStep::Request(expected), "at {millis} ms: {elector:?}");
    elector.take_response(at(millis), at(millis), response);
}

/// An elector that leads since time 0.
fn leader() -> Elector {
    let mut elector = Elector::new("a".to_owned(), timing());
    respond(&mut elector, LeaseRequest::Read, 0, LeaseResponse::Read(None));
    respond(&mut elector, LeaseRequest::Create, 0, LeaseResponse::Written);
    elector
}

#[test]
fn times_that_contradict_each_other() {
    let message = |lease, deadline, retry| {
        let millis = Duration::from_millis;
        Timing::new(millis(lease), millis(deadline), millis(retry)).unwrap_err().to_string()
    };
    assert!(message(15_000, 15_000, 2_000).contains("--leader-elect-lease-duration (15s) must be longer"));
    assert!(message(15_000, 4_000, 2_000).contains("--leader-elect-renew-deadline (4s) must be longer"));
    assert!(message(15_000, 10_000, 50).contains("at least 100ms"));
    assert!(message(1_500, 1_000, 200).contains("whole seconds"));
    assert_eq!(timing().lease_seconds(), 15);
}

#[test]
fn the_first_one_leads_at_once_and_renews() {
    let mut elector = leader();
    assert_eq!(elector.held(), Some(at(10_000)));
    assert_eq!(elector.next(at(500)), ElectorStep::Wait(Duration::from_millis(1_500)));
    respond(&mut elector, LeaseRequest::Replace, 2_000, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(12_000)));
}

#[test]
fn a_claim_counts_from_before_its_renewal_was_sent() {
    let mut elector = leader();
    elector.take_response(at(2_000), at(6_000), LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(12_000)));
}

#[test]
fn a_leader_that_cannot_renew_tries_until_its_claim_is_over() {
    let mut elector = leader();
    for millis in [2_000, 2_500, 6_000, 9_999] {
        respond(&mut elector, LeaseRequest::Replace, millis, LeaseResponse::Nothing);
    }
    assert_eq!(
        elector.next(at(9_999)),
        ElectorStep::Wait(Duration::from_millis(1)),
        "no longer than the elector"
    );
    assert_eq!(elector.next(at(10_000)), ElectorStep::Lost(Loss::Late(DEADLINE)));
    // A response after the deadline does not restore leadership.
    elector.take_response(at(9_999), at(10_001), LeaseResponse::Written);
    assert_eq!(elector.next(at(10_001)), ElectorStep::Lost(Loss::Late(DEADLINE)));
}

#[test]
fn an_answer_that_comes_too_late_makes_no_leader() {
    let mut elector = Elector::new("a".to_owned(), timing());
    respond(&mut elector, LeaseRequest::Read, 0, LeaseResponse::Read(None));
    elector.take_response(at(0), at(10_000), LeaseResponse::Written);
    assert_eq!(elector.held(), None);
    // The process holds the Lease all the same, and may renew it.
    respond(&mut elector, LeaseRequest::Replace, 11_000, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(21_000)));
}

#[test]
fn whoever_comes_second_waits_the_whole_lease_after_each_renewal() {
    let mut elector = Elector::new("b".to_owned(), timing());
    respond(&mut elector, LeaseRequest::Read, 0, held_by("a", 1));
    assert!(elector.waits(at(0)));
    respond(&mut elector, LeaseRequest::Read, 500, held_by("a", 2));
    for millis in (1_000..15_500).step_by(500) {
        respond(&mut elector, LeaseRequest::Read, millis, held_by("a", 2));
        assert!(elector.waits(at(millis)));
    }
    respond(&mut elector, LeaseRequest::Replace, 15_500, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(25_500)));
}

#[test]
fn a_lease_that_was_given_back_is_taken_at_the_next_look() {
    let mut elector = Elector::new("b".to_owned(), timing());
    respond(&mut elector, LeaseRequest::Read, 0, held_by("a", 1));
    respond(&mut elector, LeaseRequest::Read, 500, held_by("", 2));
    respond(&mut elector, LeaseRequest::Replace, 500, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(10_500)));
}

#[test]
fn of_two_that_take_it_one_waits_again() {
    let mut elector = Elector::new("b".to_owned(), timing());
    respond(&mut elector, LeaseRequest::Read, 0, held_by("", 1));
    respond(&mut elector, LeaseRequest::Replace, 0, LeaseResponse::Conflict);
    respond(&mut elector, LeaseRequest::Read, 500, held_by("c", 2));
    assert!(elector.waits(at(500)));
}

#[test]
fn a_renewal_whose_answer_was_lost_is_recognised() {
    let mut elector = leader();
    respond(&mut elector, LeaseRequest::Replace, 2_000, LeaseResponse::Nothing);
    respond(&mut elector, LeaseRequest::Replace, 2_500, LeaseResponse::Conflict);
    respond(&mut elector, LeaseRequest::Read, 2_500, held_by("a", 2));
    respond(&mut elector, LeaseRequest::Replace, 2_500, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(12_500)));
}

#[test]
fn whoever_finds_another_in_its_place_is_no_leader() {
    let mut elector = leader();
    respond(&mut elector, LeaseRequest::Replace, 2_000, LeaseResponse::Conflict);
    respond(&mut elector, LeaseRequest::Read, 2_000, held_by("b", 7));
    assert_eq!(elector.next(at(2_000)), ElectorStep::Lost(Loss::Taken("b".to_owned())));
}

#[test]
fn a_lease_that_somebody_deleted_still_protects_its_holder() {
    let mut elector = leader();
    respond(&mut elector, LeaseRequest::Replace, 2_000, LeaseResponse::Read(None));
    respond(&mut elector, LeaseRequest::Create, 2_000, LeaseResponse::Written);
    assert_eq!(elector.held(), Some(at(12_000)));
    let mut other = Elector::new("b".to_owned(), timing());
    respond(&mut other, LeaseRequest::Read, 0, held_by("a", 1));
    respond(&mut other, LeaseRequest::Read, 14_900, LeaseResponse::Read(None));
    assert_eq!(other.next(at(14_900)), ElectorStep::Wait(Duration::from_millis(100)));
    respond(&mut other, LeaseRequest::Create, 15_000, LeaseResponse::Written);
}

/// Events of the simulation below.
enum Happens {
    /// A candidate polls.
    Step(usize),
    /// A request reaches the API server.
    Arrives(Question),
    /// The response reaches the candidate.
    Answered { by: usize, sent: u64, response: LeaseResponse, version: u64 },
}

struct Question {
    by: usize,
    name: String,
    ask: LeaseRequest,
    /// Resource version that the request names.
    version: u64,
    sent: u64,
    /// True if the candidate still waits for the response.
    awaited: bool,
}

/// API server with a single Lease.
#[derive(Default)]
struct Server {
    lease: Option<(u64, String)>,
    versions: u64,
}

impl Server {
    /// The response, and the Lease's version after it.
    fn answer(&mut self, question: &Question) -> (LeaseResponse, u64) {
        let response = match (question.ask, &self.lease) {
            (LeaseRequest::Read | LeaseRequest::Replace, None) => LeaseResponse::Read(None),
            (LeaseRequest::Read, Some((version, holder))) => held_by(holder, *version),
            (LeaseRequest::Create, Some(_)) => LeaseResponse::Conflict,
            (LeaseRequest::Replace, Some((version, _))) if *version != question.version => {
                LeaseResponse::Conflict
            }
            (LeaseRequest::Create, None) | (LeaseRequest::Replace, Some(_)) => {
                self.versions += 1;
                self.lease = Some((self.versions, question.name.clone()));
                LeaseResponse::Written
            }
        };
        (response, self.lease.as_ref().map_or(0, |(version, _)| *version))
    }
}

/// Future events in order of time.
#[derive(Default)]
struct Future {
    queue: BTreeMap<(u64, u64), Happens>,
    number: u64,
}

impl Future {
    fn put(&mut self, when: u64, what: Happens) {
        self.number += 1;
        self.queue.insert((when, self.number), what);
    }
}

/// Simulates several candidates, with slow or lost requests and responses and processes that stall at any
/// moment, each with probability `trouble`. Returns the time with a leader, in milliseconds of `end`; panics
/// if two candidates lead at once.
fn simulate(seed: u64, candidates: usize, trouble: f64, end: u64) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut names: Vec<String> = (0..candidates).map(|i| format!("c{i}")).collect();
    let mut claims: Vec<Elector> = names.iter().map(|name| Elector::new(name.clone(), timing())).collect();
    let mut known = vec![0_u64; candidates];
    let (mut server, mut future) = (Server::default(), Future::default());
    for by in 0..candidates {
        future.put(random.random_range(0..3_000), Happens::Step(by));
    }
    let (mut led, mut before) = (0, 0);
    while let Some(((now, _), what)) = future.queue.pop_first() {
        if now > end {
            break;
        }
        let leaders = |millis: u64| {
            claims.iter().filter(|elector| elector.held().is_some_and(|until| at(millis) < until)).count()
        };
        // Between two events leadership can only end.
        assert!(leaders(before) <= 1, "seed {seed}: two lead at {before} ms: {claims:?}");
        led += if leaders(now) == 1 { now - before } else { 0 };
        before = now;
        let mut takes = |usual: u64, worst: u64| {
            let most = if random.random_bool(trouble) { worst } else { usual };
            random.random_range(0..=most)
        };
        match what {
            Happens::Step(by) => match claims[by].next(at(now)) {
                ElectorStep::Lost(_) => {
                    // The process ends and restarts with no knowledge.
                    names[by].push('+');
                    claims[by] = Elector::new(names[by].clone(), timing());
                    future.put(now + takes(2_000, 60_000), Happens::Step(by));
                }
                ElectorStep::Wait(time) => {
                    let wait = u64::try_from(time.as_millis()).unwrap();
                    future.put(now + wait + takes(1, 40_000), Happens::Step(by));
                }
                ElectorStep::Request(ask) => {
                    let awaited = takes(0, 3) < 2;
                    let (name, version) = (names[by].clone(), known[by]);
                    let question = Question { by, name, ask, version, sent: now, awaited };
                    // The request may arrive late, even after its sender has stopped waiting.
                    future.put(now + takes(20, 30_000), Happens::Arrives(question));
                    if !awaited {
                        let response = LeaseResponse::Nothing;
                        future.put(now + 5_000, Happens::Answered { by, sent: now, response, version: 0 });
                    }
                }
            },
            Happens::Arrives(question) => {
                let (response, version) = server.answer(&question);
                let Question { by, sent, awaited, .. } = question;
                if awaited {
                    future.put(now + takes(20, 30_000), Happens::Answered { by, sent, response, version });
                }
            }
            Happens::Answered { by, sent, response, version } => {
                if !matches!(response, LeaseResponse::Nothing | LeaseResponse::Conflict) {
                    known[by] = version;
                }
                claims[by].take_response(at(sent), at(now), response);
                future.put(now + takes(1, 40_000), Happens::Step(by));
            }
        }
    }
    led
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn two_never_lead(seed in any::<u64>(), candidates in 2_usize..5, trouble in 0.0..0.4_f64) {
        simulate(seed, candidates, trouble, 600_000);
    }
}

#[test]
fn without_trouble_somebody_leads_nearly_always() {
    for seed in 0..50 {
        let led = simulate(seed, 3, 0.0, 600_000);
        assert!(led > 595_000, "seed {seed}: {led} ms of 600 s");
    }
}
