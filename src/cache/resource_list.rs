//! Resource lists, added up as the scheduler does.

use kube_node_api::quantity;

use super::{InternedStr, intern};

/// Amounts of resources as the scheduler counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceList {
    /// CPU, in thousandths of a core.
    pub milli_cpu: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// Ephemeral storage, in bytes.
    pub ephemeral_storage: i64,
    /// All other resources except pods, by name.
    pub others: Box<[(InternedStr, i64)]>,
}

impl ResourceList {
    /// Resource list of quantities by name. An invalid quantity counts as zero: the API server accepts none.
    pub fn of<'a>(amounts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut all = Self::default();
        let mut others = Vec::new();
        for (name, amount) in amounts {
            let nanos = quantity::nanos_of(amount).unwrap_or_default();
            // Rounded up, as Kubernetes does.
            let in_units_of =
                |unit: i128| i64::try_from((nanos + unit - 1).div_euclid(unit)).unwrap_or(i64::MAX);
            match name {
                "cpu" => all.milli_cpu = in_units_of(1_000_000),
                "memory" => all.memory = in_units_of(1_000_000_000),
                "ephemeral-storage" => all.ephemeral_storage = in_units_of(1_000_000_000),
                "pods" => {}
                other => others.push((intern(other), in_units_of(1_000_000_000))),
            }
        }
        all.others = others.into();
        all
    }

    /// Amount of another resource; None if it is not in the list.
    pub fn other(&self, name: &str) -> Option<i64> {
        self.others.iter().find(|(own, _)| &**own == name).map(|(_, amount)| *amount)
    }

    /// Sum of two lists.
    pub fn plus(&self, more: &Self) -> Self {
        self.with(more, i64::saturating_add)
    }

    /// Maximum of two lists, by resource.
    pub(super) fn or_more(&self, than: &Self) -> Self {
        self.with(than, i64::max)
    }

    fn with(&self, more: &Self, of: impl Fn(i64, i64) -> i64) -> Self {
        let mut others: Vec<_> = self
            .others
            .iter()
            .map(|(name, amount)| (InternedStr::clone(name), of(*amount, more.other(name).unwrap_or(0))))
            .collect();
        others.extend(more.others.iter().filter(|(name, _)| self.other(name).is_none()).cloned());
        Self {
            milli_cpu: of(self.milli_cpu, more.milli_cpu),
            memory: of(self.memory, more.memory),
            ephemeral_storage: of(self.ephemeral_storage, more.ephemeral_storage),
            others: others.into(),
        }
    }
}
