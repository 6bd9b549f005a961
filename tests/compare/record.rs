//! What one watch saw of all pods, in order, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use kube_node_testing::{LONG, eventually};

/// What was seen of one pod.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The pod as it was after each change.
    pub shown: Vec<(Instant, Value)>,
    pub gone: Option<Instant>,
}

/// Written as long as it is there.
pub struct Record {
    stories: Arc<Mutex<Stories>>,
    _watch: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Stories {
    begun: bool,
    /// The pods of a list that is not complete.
    listed: BTreeSet<String>,
    by_name: BTreeMap<String, Story>,
}

impl Stories {
    fn show(&mut self, pod: &DynamicObject) {
        let story = self.by_name.entry(pod.name_any()).or_default();
        story.shown.push((Instant::now(), serde_json::to_value(pod).unwrap()));
    }
}

impl Record {
    /// Begins before there are pods.
    pub async fn begin(client: &Client, namespace: &str) -> Self {
        // As the server says it: a type of ours would drop what it does not know.
        let pods: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
        let stories: Arc<Mutex<Stories>> = Arc::default();
        let task = tokio::spawn(write(pods, Arc::clone(&stories)));
        let record = Self { stories, _watch: AbortOnDropHandle::new(task) };
        eventually("the record begins", LONG, async || record.stories.lock().unwrap().begun.then_some(()))
            .await;
        record
    }

    /// What was seen of a pod so far.
    pub fn of(&self, pod: &str) -> Story {
        self.stories.lock().unwrap().by_name.get(pod).cloned().unwrap_or_default()
    }

    /// Waits until a pod has shown something, at or after its change number `from`: the number of that change. None
    /// where it has not within the limit.
    pub async fn until(
        &self,
        pod: &str,
        from: usize,
        limit: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Option<usize> {
        let start = Instant::now();
        loop {
            if let Some(story) = self.stories.lock().unwrap().by_name.get(pod) {
                let mut shown = story.shown.iter().enumerate().skip(from);
                let found = shown.find(|(_, (_, pod))| holds(pod)).map(|(at, _)| at);
                if found.is_some() || story.gone.is_some() {
                    return found;
                }
            }
            if start.elapsed() > limit {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a pod is gone; whether it is.
    pub async fn until_gone(&self, pod: &str, limit: Duration) -> bool {
        self.until(pod, usize::MAX, limit, |_| false).await;
        self.of(pod).gone.is_some()
    }
}

async fn write(pods: Api<DynamicObject>, stories: Arc<Mutex<Stories>>) {
    let mut events = pin!(watcher(pods, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let mut stories = stories.lock().unwrap();
        match event {
            watcher::Event::Init => stories.listed.clear(),
            // What a list does not name went while nobody watched.
            watcher::Event::InitDone => {
                let Stories { begun, listed, by_name } = &mut *stories;
                *begun = true;
                for (_, story) in by_name.iter_mut().filter(|(name, _)| !listed.contains(*name)) {
                    story.gone.get_or_insert_with(Instant::now);
                }
            }
            watcher::Event::InitApply(pod) => {
                stories.listed.insert(pod.name_any());
                stories.show(&pod);
            }
            watcher::Event::Apply(pod) => stories.show(&pod),
            watcher::Event::Delete(pod) => {
                let story = stories.by_name.entry(pod.name_any()).or_default();
                story.gone = Some(Instant::now());
            }
        }
    }
}
