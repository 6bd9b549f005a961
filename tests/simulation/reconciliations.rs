//! Counts the reconciliations of a run: each has a span of that name.

use std::{cell::Cell, fmt, sync::Once};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static OF_SETS: Cell<u64> = const { Cell::new(0) };
}

/// Number of reconciliations on this thread so far: each run has a thread for itself as long as it lasts.
pub fn count() -> u64 {
    static COUNTED: Once = Once::new();
    // The first subscriber of the process, so that nobody refuses it.
    COUNTED.call_once(|| drop(tracing::subscriber::set_global_default(Counter)));
    COUNT.get()
}

/// Number of those of NodeSets.
pub fn of_sets() -> u64 {
    count();
    OF_SETS.get()
}

/// Reads which controller a span is of.
struct OfSets(bool);

impl Visit for OfSets {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0 |= field.name() == "controller" && value == "nodeset";
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// A subscriber of these spans alone.
struct Counter;

impl Subscriber for Counter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "reconcile"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        COUNT.set(COUNT.get() + 1);
        let mut of_sets = OfSets(false);
        attributes.record(&mut of_sets);
        OF_SETS.set(OF_SETS.get() + u64::from(of_sets.0));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
