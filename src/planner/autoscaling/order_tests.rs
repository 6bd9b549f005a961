use super::*;
use crate::autoscaling::{increase, tests::standing};

#[test]
fn what_was_written_counts_until_the_watch_shows_it() {
    let mut memory = Memory::default();
    let (before, after) = (standing(3), Standing { generation: 2, version: "2".to_owned(), ..standing(5) });
    assert_eq!(memory.current(&before), Some(&before));
    memory.read(after.clone());
    assert_eq!(memory.current(&before), Some(&after));
    // A change of somebody else that the watch shows later than that of ours.
    let later = Standing { generation: 3, version: "3".to_owned(), ..standing(4) };
    assert_eq!(memory.current(&later), Some(&later));
    // A set of this name that was made anew.
    let other = Standing { uid: "other".to_owned(), ..standing(1) };
    assert_eq!(memory.current(&other), Some(&other));
}

#[test]
fn a_write_without_an_answer_is_settled_first() {
    let mut memory = Memory::default();
    let on = standing(3);
    memory.lost(on.clone());
    assert_eq!(memory.current(&on), None);
    assert!(!memory.settles(&on), "it may happen yet: the set has the version that it names");
    let fenced = Standing { version: "2".to_owned(), ..on.clone() };
    assert!(memory.settles(&fenced));
    memory.read(fenced);
    assert_eq!(memory.current(&on), Some(&on));
}

/// An API server that is asked by an order: what it says to each question, and what it was asked.
fn carried_out(mut order: Order, memory: &mut Memory, says: Vec<Heard>) -> (Step, Vec<Ask>) {
    let mut asked = Vec::new();
    let mut heard = Heard::Begun;
    let mut says = says.into_iter();
    loop {
        let grow = |standing: &Standing| increase(standing, 2).map(Some);
        match order.next(heard, memory, || Ok(standing(3)), grow, "s") {
            Step::Ask(ask) => asked.push(ask),
            end => return (end, asked),
        }
        heard = says.next().expect("a question too many");
    }
}

#[test]
fn an_order_is_one_write() {
    let written = Standing { generation: 2, version: "2".to_owned(), ..standing(5) };
    let mut memory = Memory::default();
    let (end, asked) = carried_out(Order::of_number(), &mut memory, vec![Heard::Stands(written.clone())]);
    assert_eq!((end, asked.len()), (Step::Done, 1));
    assert_eq!(memory.current(&standing(3)), Some(&written));
}

#[test]
fn a_conflict_over_the_status_is_no_obstacle_and_one_over_the_spec_is() {
    let written = Heard::Stands(Standing { generation: 2, version: "3".to_owned(), ..standing(5) });
    let status = Heard::Stands(Standing { version: "2".to_owned(), ..standing(3) });
    let says = vec![Heard::Conflict, status, written];
    let (end, asked) = carried_out(Order::of_number(), &mut Memory::default(), says);
    assert_eq!(end, Step::Done);
    assert!(matches!(&asked[2], Ask::Write { on, .. } if on.version == "2"), "{asked:?}");

    // Raised already, perhaps by the same order to a process before this one.
    let raised = || Heard::Stands(Standing { generation: 2, version: "2".to_owned(), ..standing(5) });
    let says = vec![Heard::Conflict, raised()];
    let (end, _) = carried_out(Order::of_number(), &mut Memory::default(), says);
    assert_eq!(end, Step::Failed(Failure::Changed));
    let again = Heard::Stands(Standing { generation: 3, version: "3".to_owned(), ..standing(7) });
    let says = vec![Heard::Conflict, raised(), again];
    assert_eq!(carried_out(Order::of_names(), &mut Memory::default(), says).0, Step::Done);
}

#[test]
fn a_lost_answer_is_followed_to_its_end() {
    let done = || Heard::Stands(Standing { generation: 2, version: "2".to_owned(), ..standing(5) });
    let untouched = || Heard::Stands(standing(3));
    let fenced = || Heard::Stands(Standing { version: "2".to_owned(), ..standing(3) });
    let of = |says| {
        let mut memory = Memory::default();
        let (end, asked) = carried_out(Order::of_number(), &mut memory, says);
        (end, asked, memory.unsettled().is_some())
    };
    // It had happened.
    let (end, asked, open) = of(vec![Heard::Nothing, done()]);
    assert_eq!((end, asked.len(), open), (Step::Done, 2, false));
    // It had not, and cannot any more: it is asked for again.
    let (end, asked, _) = of(vec![Heard::Nothing, untouched(), fenced(), done()]);
    assert_eq!(end, Step::Done);
    assert!(matches!(asked[2], Ask::Fence { .. }) && matches!(asked[3], Ask::Write { .. }), "{asked:?}");
    // It happened while it was fenced off.
    let (end, asked, _) = of(vec![Heard::Nothing, untouched(), Heard::Conflict, done()]);
    assert_eq!((end, asked.len()), (Step::Done, 4));
    // Nobody knows: the next one settles it first.
    let (end, _, open) = of(vec![Heard::Nothing, Heard::Nothing]);
    assert_eq!((end, open), (Step::Failed(Failure::Open), true));
    // Somebody else has changed the spec, before it or after it.
    let other = Heard::Stands(Standing { generation: 3, version: "7".to_owned(), ..standing(4) });
    assert_eq!(of(vec![Heard::Nothing, other]).0, Step::Failed(Failure::Open));
    // The set is gone.
    let (end, _, open) = of(vec![Heard::Nothing, Heard::NoGroup]);
    assert_eq!((end, open), (Step::Refused(Refusal::NoGroup("s".to_owned())), false));
}
