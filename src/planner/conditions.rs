//! Conditions of NodeClass and NodeSet: set by type; `lastTransitionTime` changes only with the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum message length in characters; apimachinery allows 32,768, more than anybody reads.
const MESSAGE_MAX: usize = 1_024;

/// New content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Condition type.
    pub r#type: &'static str,
    /// Status: True or False.
    pub status: bool,
    /// Reason in `CamelCase`.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

impl ConditionUpdate {
    /// An update of the condition `type`.
    pub fn new(r#type: &'static str, status: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { r#type, status, reason, message: message.into() }
    }
}

/// `conditions` with these updates; conditions of other types stay unchanged.
pub fn set(
    conditions: &[Condition],
    updates: Vec<ConditionUpdate>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut result = conditions.to_vec();
    for ConditionUpdate { r#type, status, reason, message } in updates {
        let status = if status { "True" } else { "False" };
        let old = result.iter_mut().find(|condition| condition.type_ == r#type);
        let unchanged = old.as_ref().filter(|condition| condition.status == status);
        let since = unchanged.map_or(Time(now), |condition| condition.last_transition_time.clone());
        let new = Condition {
            type_: r#type.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: shortened(message),
            observed_generation: generation,
            last_transition_time: since,
        };
        match old {
            Some(place) => *place = new,
            None => result.push(new),
        }
    }
    result
}

fn shortened(message: String) -> String {
    if message.chars().count() <= MESSAGE_MAX {
        return message;
    }
    message.chars().take(MESSAGE_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updates(status: bool, reason: &'static str) -> Vec<ConditionUpdate> {
        vec![ConditionUpdate::new("Available", status, reason, "m".repeat(5_000))]
    }

    #[test]
    fn the_time_moves_with_the_status_alone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = set(&[], updates(true, "A"), Some(1), at(1));
        let second = set(&first, updates(true, "B"), Some(2), at(2));
        assert_eq!(second[0].last_transition_time.0, at(1));
        assert_eq!((second[0].reason.as_str(), second[0].observed_generation), ("B", Some(2)));
        let third = set(&second, updates(false, "B"), Some(2), at(3));
        assert_eq!(third[0].last_transition_time.0, at(3));
        assert_eq!(third.len(), 1);
        assert_eq!(third[0].message.chars().count(), MESSAGE_MAX);
    }
}
