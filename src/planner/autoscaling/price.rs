//! Prices of Nodes and pods for cluster-autoscaler's price expander, which compares groups: any unit will do.

use std::collections::BTreeMap;

use k8s_pb::api::core::v1::Pod;
use kube_node_api::{Resources, quantity};

use super::{Code, ScaleRefusal};

/// Seconds per hour.
pub const HOUR: f64 = 3_600.0;

/// A class with a price.
#[derive(Clone, Copy, Debug)]
pub struct ClassPrice<'a> {
    /// Price of a node per hour.
    pub an_hour: f64,
    /// Capacity of a node.
    pub capacity: &'a Resources,
}

/// Length of a time span in hours, from its start and end in seconds.
pub fn hours(start: Option<f64>, end: Option<f64>) -> Result<f64, ScaleRefusal> {
    match (start, end) {
        (Some(start), Some(end)) if end >= start => Ok((end - start) / HOUR),
        _ => Err(ScaleRefusal::new(
            Code::InvalidArgument,
            "a price needs a span of time: the end is before the start, or one of them is missing",
        )),
    }
}

/// Price of a node of a class for this number of hours.
pub fn node_price(class: &str, an_hour: Option<&str>, hours: f64) -> Result<f64, ScaleRefusal> {
    let price: Option<f64> = an_hour.and_then(|text| text.parse().ok());
    price.map(|price| price * hours).ok_or_else(|| {
        let message = format!("NodeClass {class} has no spec.price: write for example price: \"0.25\"");
        ScaleRefusal::new(Code::FailedPrecondition, message)
    })
}

/// Minimum price of a pod: the cheapest share of a node, by the pod's scarcest resource. 0 if no node with a price has
/// all requested resources: an error would exclude every group from cluster-autoscaler's choice for this pod.
pub fn least_pod_price(pod: &Pod, prices: &[ClassPrice<'_>], hours: f64) -> f64 {
    let requests = requests(pod);
    let shares = prices.iter().filter_map(|price| Some(price.an_hour * share(&requests, price.capacity)?));
    shares.min_by(f64::total_cmp).map_or(0.0, |an_hour| an_hour * hours)
}

/// Share of a node that the requests fill; None if the node lacks a requested resource.
fn share(requests: &BTreeMap<&str, i128>, capacity: &Resources) -> Option<f64> {
    let share = |(name, requested): (&&str, &i128)| {
        let has = quantity::nanos(capacity.get(*name)?).ok().filter(|has| *has > 0)?;
        Some(*requested as f64 / has as f64)
    };
    requests.iter().try_fold(0.0, |greatest: f64, request| Some(greatest.max(share(request)?)))
}

/// Sum of the containers' requests; init containers run before and are over.
fn requests(pod: &Pod) -> BTreeMap<&str, i128> {
    let mut sums: BTreeMap<&str, i128> = BTreeMap::new();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let resources = containers.filter_map(|container| container.resources.as_ref());
    for (name, amount) in resources.flat_map(|resources| &resources.requests) {
        let Ok(nanos) = quantity::nanos_of(amount.string()) else { continue };
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(nanos);
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}
