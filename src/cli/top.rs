//! `kube-node top`: all NodeSets of a cluster, what they wait for, and the Nodes by stage. On a terminal the
//! display follows changes, elsewhere it is printed once. It uses watches, so hours of display cost the API
//! server nothing.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams, core::PartialObjectMeta, runtime::watcher};
use kube_ext::{objects::list, printable::printable};
use kube_node_api::{GoDuration, NodeSet};
use kube_node_cache::{Cache, CustomObject, NodeStage, NodeView, ReflectError};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    access::ClusterArgs,
    print_line,
    set_status::{condition, degraded, delay},
    table::{Table, terminal_size},
    text::{age, age_or_dash},
};

/// Headings of the table.
const COLUMNS: [&str; 9] =
    ["NODESET", "CLASS", "WANTED", "NODES", "READY", "UPDATED", "AGE", "STATUS", "WAITS FOR"];
/// Minimum of `--interval`.
const SHORTEST: Duration = Duration::from_millis(100);
/// Interval of checks whether the initial lists are complete.
const POLL: Duration = Duration::from_millis(20);
/// Time limit for an answer of the API server.
const ANSWER: Duration = Duration::from_secs(2);
/// Escape sequences: switch to the alternate screen and hide the cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Time between two updates of the display, for example 500ms
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    interval: GoDuration,
    /// Print the table once and exit, on a terminal too
    #[arg(long)]
    once: bool,
}

/// Watched objects on display.
#[derive(Default)]
struct Shown {
    sets: Arc<Cache<CustomObject<NodeSet>>>,
    /// `None` without the right to list Nodes.
    nodes: Option<Arc<Cache<NodeView>>>,
}

impl Top {
    /// Shows the NodeSets until Ctrl-C.
    pub async fn run(self) -> anyhow::Result<()> {
        let GoDuration(every) = self.interval;
        ensure!(every >= SHORTEST, "--interval is too short: give {} or more", GoDuration(SHORTEST));
        let client = self.cluster.client().await?;
        let mut watches = JoinSet::new();
        let shown = Shown::follow(&client, &mut watches).await?;
        tokio::select! {
            () = shown.in_sync() => {}
            Some(ended) = watches.join_next() => ended??,
        }
        if self.once || terminal_size().is_none() {
            print_line(shown.text(None, Timestamp::now(), None));
        } else {
            shown.draw(&client, every).await?;
        }
        Ok(())
    }
}

impl Shown {
    /// Starts the watches.
    async fn follow(
        client: &Client,
        watches: &mut JoinSet<Result<(), ReflectError>>,
    ) -> anyhow::Result<Self> {
        let one = ListParams::default().limit(1);
        list(&Api::<PartialObjectMeta<NodeSet>>::all(client.clone()), "NodeSets", &one).await?;
        let nodes = list(&Api::<PartialObjectMeta<Node>>::all(client.clone()), "Nodes", &one).await;
        let may_list_nodes = match nodes {
            Err(error) if error.is(403) => false,
            nodes => nodes.map(|_| true)?,
        };
        let shown = Self { nodes: may_list_nodes.then(Arc::default), ..Self::default() };
        let api: Api<CustomObject<NodeSet>> = Api::all(client.clone());
        watches.spawn(kube_node_cache::run(api, watcher::Config::default(), Arc::clone(&shown.sets)));
        if let Some(nodes) = shown.nodes.clone() {
            watches.spawn(kube_node_cache::run_protobuf(client.clone(), watcher::Config::default(), nodes));
        }
        Ok(shown)
    }

    /// Waits for the initial lists.
    async fn in_sync(&self) {
        while !self.sets.in_sync() || self.nodes.as_ref().is_some_and(|nodes| !nodes.in_sync()) {
            sleep(POLL).await;
        }
    }

    /// Redraws until stopped. The last table stays on the screen.
    async fn draw(&self, client: &Client, every: Duration) -> anyhow::Result<()> {
        let stop = kube_ext::process::signals()?;
        // A closed terminal needs no cleanup.
        let screen = scopeguard::guard((), |()| drop(write(LEAVE)));
        write(ENTER)?;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_since = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let now = Timestamp::now();
            let text = self.text(terminal_size(), now, silent_since);
            let text = printable(&text).replace('\n', "\x1b[K\r\n");
            // Overwrites the screen line by line, which avoids flicker.
            write(&format!("\x1b[H{text}\x1b[K\x1b[J"))?;
            let request = timeout(ANSWER, client.apiserver_version());
            let Some(answer) = stop.run_until_cancelled(request).await else { break };
            silent_since = if matches!(answer, Ok(Ok(_))) { None } else { silent_since.or(Some(now)) };
        }
        drop(screen);
        print_line(self.text(terminal_size().map(|(width, _)| (width, usize::MAX)), Timestamp::now(), None));
        Ok(())
    }

    /// The text of the display; `size` is that of the terminal that it must fit, if any.
    fn text(&self, size: Option<(usize, usize)>, now: Timestamp, silent_since: Option<Timestamp>) -> String {
        let mut rows: Vec<Row> = self.sets.all().iter().map(|set| Row::of(set, now)).collect();
        rows.sort_by(|a, b| (a.is_settled, &a.cells[0]).cmp(&(b.is_settled, &b.cells[0])));
        let desired = rows.iter().map(|row| row.desired).sum();
        let mut lines = vec![format!("NodeSets {}   {}", rows.len(), self.nodes(desired))];
        if let Some(since) = silent_since {
            lines.push(format!("The API server has not answered for {}: this is old", age(since, now)));
        }
        lines.push(String::new());
        let (width, height) = size.unzip();
        // Keep space for the heading of the table and for the line that counts hidden rows.
        let shown = height.map_or(usize::MAX, |height| height.saturating_sub(lines.len() + 2).max(1));
        let rest = rows.len().saturating_sub(shown);
        let mut table = Table::new(&COLUMNS);
        rows.into_iter().take(shown).for_each(|row| table.row(row.cells));
        lines.push(table.text(width));
        if rest > 0 {
            lines.push(format!("… and {rest} more"));
        }
        lines.join("\n")
    }

    fn nodes(&self, desired: i32) -> String {
        let Some(nodes) = &self.nodes else {
            return format!("Nodes {desired} wanted (you may not list Nodes)");
        };
        let nodes = nodes.all();
        let counts = NodeStage::ALL.map(|stage| {
            let is_of = |node: &&Arc<NodeView>| node.class().is_some() && node.stage() == stage;
            format!("{} {}", nodes.iter().filter(is_of).count(), <&str>::from(stage).replace('_', " "))
        });
        format!("Nodes {desired} wanted: {}", counts.join(", "))
    }
}

/// One row of the table.
struct Row {
    desired: i32,
    /// True if the NodeSet needs no change.
    is_settled: bool,
    cells: Vec<String>,
}

impl Row {
    fn of(object: &CustomObject<NodeSet>, now: Timestamp) -> Self {
        let mut cells = vec![object.name().to_owned()];
        let age = age_or_dash(object.metadata.creation_timestamp.as_ref().map(|created| created.0), now);
        let set = match &object.object {
            Ok(set) => set,
            Err(error) => {
                cells.resize(6, "?".to_owned());
                cells.extend([age, "Unreadable".to_owned(), error.clone()]);
                return Self { desired: 0, is_settled: false, cells };
            }
        };
        let desired = set.spec.replicas;
        let status = set.status.clone().unwrap_or_default();
        let (degraded, progressing) = (degraded(&status), condition(&status, "Progressing"));
        let reason = match degraded.or(progressing) {
            _ if object.is_leaving() => "Leaving",
            Some(condition) => &condition.reason,
            None => "-",
        };
        let more = match status.waits.len() {
            0 | 1 => String::new(),
            count => format!(" ({} more)", count - 1),
        };
        let waits_for = delay(&status).map_or("-", |(_, message)| message).to_owned() + &more;
        let is_settled = !object.is_leaving()
            && degraded.is_none()
            && status.observed_generation == set.metadata.generation
            && progressing.is_some_and(|progressing| progressing.status == "False")
            && (status.replicas, status.ready_replicas) == (desired, desired);
        let counts = [desired, status.replicas, status.ready_replicas, status.updated_replicas];
        cells.push(set.spec.node_class_name.clone());
        cells.extend(counts.map(|count| count.to_string()));
        cells.extend([age, reason.to_owned(), waits_for]);
        Self { desired, is_settled, cells }
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use kube_node_api::names;

    fn set(name: &str, ready: i32, waits: &Value) -> CustomObject<NodeSet> {
        let progressing = if ready == 3 { ("False", "Complete") } else { ("True", "WaitingForNodes") };
        let set: NodeSet = serde_json::from_value(json!({
            "metadata": {"name": name, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "nodeClassName": "medium"},
            "status": {
                "observedGeneration": 1, "replicas": 3, "readyReplicas": ready, "updatedReplicas": 3,
                "waits": waits,
                "conditions": [{"type": "Progressing", "status": progressing.0, "reason": progressing.1,
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .unwrap();
        CustomObject { metadata: set.metadata.clone(), object: Ok(Arc::new(set)), class: None }
    }

    fn wait(message: &str) -> Value {
        json!({"reason": "R", "message": message, "nodes": 1, "since": "2026-01-01T00:00:00Z"})
    }

    fn at() -> Timestamp {
        "2026-01-01T00:01:00Z".parse().unwrap()
    }

    fn shown() -> Shown {
        let class = |name: &str| {
            let labels = [(names::LABEL_NODECLASS.to_owned(), "medium".to_owned())];
            NodeView { name: name.into(), labels: labels.into(), ..NodeView::default() }
        };
        let sets = [
            set("a", 3, &json!([])),
            set("b", 1, &json!([wait("pod x cannot be evicted"), wait("more")])),
            set("c", 3, &json!([])),
        ];
        let nodes = [class("a-1"), class("a-2"), NodeView { name: "real".into(), ..NodeView::default() }];
        Shown { sets: Cache::full(sets), nodes: Some(Cache::full(nodes)) }
    }

    #[test]
    fn what_waits_comes_first() {
        assert_eq!(
            shown().text(None, at(), None),
            "NodeSets 3   Nodes 9 wanted: 2 provisioning, 0 ready, 0 not ready, 0 leaving\n\
             \n\
             NODESET   CLASS    WANTED   NODES   READY   UPDATED   AGE   STATUS            WAITS FOR\n\
             b         medium   3        3       1       3         60s   WaitingForNodes   pod x cannot be evicted (1 more)\n\
             a         medium   3        3       3       3         60s   Complete          -\n\
             c         medium   3        3       3       3         60s   Complete          -"
        );
    }

    #[test]
    fn it_fits_the_terminal() {
        for (width, height) in [(80, 5), (120, 6), (80, 24)] {
            let text = shown().text(Some((width, height)), at(), None);
            assert!(text.lines().count() <= height, "{height}:\n{text}");
            assert!(text.lines().skip(2).all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("\nb "), "{text}");
            assert_eq!(text.contains("… and "), height < 7, "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        let old = shown().text(None, at(), Some("2026-01-01T00:00:30Z".parse().unwrap()));
        assert!(old.contains("The API server has not answered for 30s"), "{old}");
        let text = Shown { nodes: None, ..shown() }.text(None, at(), None);
        assert!(text.starts_with("NodeSets 3   Nodes 9 wanted (you may not list Nodes)\n"), "{text}");
        let metadata = set("x", 3, &json!([])).metadata;
        let unreadable = CustomObject { metadata, object: Err("no replicas".to_owned()), class: None };
        let text = Shown { sets: Cache::full([unreadable]), nodes: None }.text(None, at(), None);
        assert!(
            text.ends_with(
                "x         ?       ?        ?       ?       ?         60s   Unreadable   no replicas"
            ),
            "{text}"
        );
    }
}
