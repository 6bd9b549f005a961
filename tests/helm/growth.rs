//! A set that grows while helm changes the release and the leader dies, so that operators take over from each other in the
//! middle of it.

use std::{pin::pin, time::Duration};

use kube::Client;
use serde_json::json;
use tokio::time::sleep;

use super::{CLUSTER, cluster::machines_carried};
use kube_node_testing::{
    Fixture, LONG, class_spec, create,
    history::{RecordedHistory, leased},
};

/// How much it grows by at once.
const STEP: usize = 4;
/// How often it does. A set of 200 is there in seconds, an upgrade takes longer.
const PACE: Duration = Duration::from_millis(400);
/// So many are asked for only once all is over: what happens, happens during the growth.
const LAST: usize = 20;

/// The set, and what happens to its Nodes.
pub struct Growth {
    own: Fixture,
    history: RecordedHistory,
    wanted: usize,
}

impl Growth {
    pub async fn begin(client: &Client) -> Self {
        let own = Fixture::of(client.clone(), "helm-growth");
        create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
        own.create_set(0, json!({})).await;
        let history = RecordedHistory::begin(&own).await;
        Self { own, history, wanted: 0 }
    }

    /// Grows to so many replicas while something happens.
    pub async fn to<T>(&mut self, count: usize, event: impl Future<Output = T>) -> T {
        let mut event = pin!(event);
        let happened = loop {
            tokio::select! {
                happened = &mut event => break happened,
                () = sleep(PACE) => self.ask((count - LAST).min(self.wanted + STEP)),
            }
        };
        println!("{} of {count} nodes were there when it was over", self.history.born());
        self.ask(count);
        self.own.settled(count).await;
        happened
    }

    /// As somebody would by hand.
    fn ask(&mut self, count: usize) {
        if count > self.wanted {
            CLUSTER.kubectl(&["scale", "nodeset", &self.own.name, &format!("--replicas={count}")]);
            self.wanted = count;
        }
    }

    /// No Node was made twice, replaced or not Ready in between, each has its machine, and nobody else has one. `others` are
    /// carried besides.
    pub async fn ends_whole(self, others: usize) {
        self.history.shows_nothing_but(self.wanted).await;
        leased(&self.own.client, LONG).await;
        machines_carried(&self.own.client, self.wanted + others).await;
        self.own.clean_up().await;
    }
}
