//! Budget of a NodeSet in numbers of Nodes. Percentages are rounded as for Deployments: the surge up, so that
//! it is not 0, the shortage down, so that it never exceeds the percentage.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_node_api::RollingUpdate;

/// Default of `maxSurge`.
const DEFAULT_SURGE: usize = 1;

/// Budget of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of machines above the replicas.
    pub surge: usize,
    /// Maximum number of missing replicas.
    pub unavailable: usize,
}

/// Rounding of a fraction of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Up.
    Up,
    /// Down.
    Down,
}

impl Budget {
    /// Budget of a set with this number of replicas.
    pub fn of(strategy: Option<&RollingUpdate>, replicas: usize) -> Self {
        let surge = strategy.and_then(|strategy| strategy.max_surge.as_ref());
        let unavailable = strategy.and_then(|strategy| strategy.max_unavailable.as_ref());
        let budget = Self {
            surge: surge.map_or(DEFAULT_SURGE, |surge| amount(surge, replicas, Round::Up)),
            unavailable: unavailable.map_or(0, |unavailable| amount(unavailable, replicas, Round::Down)),
        };
        // If both percentages round to 0, one Node may be missing; otherwise no Node could ever be replaced.
        if budget == (Self { surge: 0, unavailable: 0 }) { Self { unavailable: 1, ..budget } } else { budget }
    }

    /// Minimum number of available Nodes.
    pub const fn floor(&self, replicas: usize) -> usize {
        replicas.saturating_sub(self.unavailable)
    }
}

/// A number of Nodes or a percentage of all Nodes; other values, which the schema refuses, count as 0.
pub fn amount(amount: &IntOrString, all: usize, round: Round) -> usize {
    match amount {
        IntOrString::Int(number) => usize::try_from(*number).unwrap_or(0),
        IntOrString::String(text) => {
            let percent: usize = text.strip_suffix('%').and_then(|text| text.parse().ok()).unwrap_or(0);
            let hundredths = percent.saturating_mul(all);
            match round {
                Round::Up => hundredths.div_ceil(100),
                Round::Down => hundredths / 100,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strategy(surge: &str, unavailable: &str) -> RollingUpdate {
        let part = |text: &str| Some(IntOrString::String(text.to_owned()));
        RollingUpdate { max_surge: part(surge), max_unavailable: part(unavailable), partition: None }
    }

    #[test]
    fn percentages_are_rounded_as_deployments_do() {
        assert_eq!(Budget::of(Some(&strategy("25%", "25%")), 10), Budget { surge: 3, unavailable: 2 });
        assert_eq!(Budget::of(Some(&strategy("1%", "99%")), 1), Budget { surge: 1, unavailable: 0 });
        assert_eq!(Budget::of(None, 10), Budget { surge: 1, unavailable: 0 });
    }

    #[test]
    fn a_budget_of_nothing_lets_one_be_missing() {
        assert_eq!(Budget::of(Some(&strategy("0%", "5%")), 10), Budget { surge: 0, unavailable: 1 });
    }
}
