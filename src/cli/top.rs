//! `kube-node top`: all NodeSets of a cluster, what they wait for, and the Nodes by stage. On a terminal the
//! display follows changes, elsewhere it is printed once. It uses watches, so hours of display cost the API
//! server nothing.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams, core::PartialObjectMeta, runtime::watcher};
use kube_ext::objects::list;
use kube_node_api::{GoDuration, NodeSet};
use kube_node_cache::{Cache, CustomObject, NodeStage, NodeView, ReflectError};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    access::ClusterArgs,
    say,
    set_status::{condition, degraded, delay},
    table::{Table, terminal_size},
    text::age,
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
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let GoDuration(every) = self.interval;
        if every < SHORTEST {
            bail!("--interval is too short: give {} or more", GoDuration(SHORTEST));
        }
        let client = self.cluster.client().await?;
        let mut watches = JoinSet::new();
        let shown = Shown::follow(&client, &mut watches).await?;
        tokio::select! {
            () = shown.in_sync() => {}
            Some(ended) = watches.join_next() => ended??,
        }
        if self.once || terminal_size().is_none() {
            say(shown.text(None, Timestamp::now(), None));
        } else {
            shown.draw(&client, every).await?;
        }
        Ok(ExitCode::SUCCESS)
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
        let screen = Screen::enter()?;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_since = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let now = Timestamp::now();
            let text = self.text(terminal_size(), now, silent_since);
            screen.show(&text)?;
            let asked = timeout(ANSWER, client.apiserver_version());
            let Some(answer) = stop.run_until_cancelled(asked).await else { break };
            silent_since = match answer {
                Ok(Ok(_)) => None,
                _ => silent_since.or(Some(now)),
            };
        }
        drop(screen);
        say(self.text(terminal_size().map(|(width, _)| (width, usize::MAX)), Timestamp::now(), None));
        Ok(())
    }

    /// The text of the display; `size` is that of the terminal that it must fit, if any.
    fn text(&self, size: Option<(usize, usize)>, now: Timestamp, silent_since: Option<Timestamp>) -> String {
        let mut rows: Vec<Row> = self.sets.all().iter().map(|set| Row::of(set, now)).collect();
        rows.sort_by(|a, b| (a.is_settled, &a.cells[0]).cmp(&(b.is_settled, &b.cells[0])));
        let wanted: i32 = rows.iter().map(|row| row.wanted).sum();
        let mut lines = vec![format!("NodeSets {}   {}", rows.len(), self.nodes(wanted))];
        if let Some(since) = silent_since {
            lines.push(format!("The API server has not answered for {}: this is old", age(since, now)));
        }
        lines.push(String::new());
        let (width, height) = size.unzip();
        // Keep space for the heading of the table and for the line that counts hidden rows.
        let room = height.map_or(usize::MAX, |height| height.saturating_sub(lines.len() + 2).max(1));
        let rest = rows.len().saturating_sub(room);
        let mut table = Table::new(&COLUMNS);
        for row in rows.into_iter().take(room) {
            table.row(row.cells);
        }
        lines.push(table.text(width));
        if rest > 0 {
            lines.push(format!("… and {rest} more"));
        }
        lines.join("\n")
    }

    fn nodes(&self, wanted: i32) -> String {
        let Some(nodes) = &self.nodes else {
            return format!("Nodes {wanted} wanted (you may not list Nodes)");
        };
        let nodes = nodes.all();
        let of_classes = || nodes.iter().filter(|node| node.class().is_some());
        let counts = NodeStage::ALL.map(|stage| {
            let count = of_classes().filter(|node| node.stage() == stage).count();
            format!("{count} {}", <&str>::from(stage).replace('_', " "))
        });
        format!("Nodes {wanted} wanted: {}", counts.join(", "))
    }
}

/// One row of the table.
struct Row {
    wanted: i32,
    /// True if the NodeSet needs no change.
    is_settled: bool,
    cells: Vec<String>,
}

impl Row {
    fn of(object: &CustomObject<NodeSet>, now: Timestamp) -> Self {
        let name = object.name().to_owned();
        let created = object.metadata.creation_timestamp.as_ref();
        let age = created.map_or_else(|| "-".to_owned(), |created| age(created.0, now));
        let set = match &object.object {
            Ok(set) => set,
            Err(error) => {
                let mut cells = vec![name];
                cells.resize(6, "?".to_owned());
                cells.extend([age, "Unreadable".to_owned(), error.clone()]);
                return Self { wanted: 0, is_settled: false, cells };
            }
        };
        let wanted = set.spec.replicas;
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
            && (status.replicas, status.ready_replicas) == (wanted, wanted);
        let counts = [wanted, status.replicas, status.ready_replicas, status.updated_replicas];
        let mut cells = vec![name, set.spec.node_class_name.clone()];
        cells.extend(counts.map(|count| count.to_string()));
        cells.extend([age, reason.to_owned(), waits_for]);
        Self { wanted, is_settled, cells }
    }
}

/// The terminal's alternate screen; dropping it restores the normal screen.
struct Screen;

impl Screen {
    fn enter() -> anyhow::Result<Self> {
        let screen = Self;
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Overwrites the screen line by line, which avoids flicker.
    fn show(&self, text: &str) -> anyhow::Result<()> {
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", text.replace('\n', "\x1b[K\r\n")))
    }

    // A method, so that only the owner of the alternate screen can write.
    #[allow(clippy::unused_self)]
    fn write(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal needs no cleanup.
        let _ = self.write(LEAVE);
    }
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
