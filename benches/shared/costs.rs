//! What a measurement costs whom: CPU time of each process, and how long the API server takes for a write.

use super::{Plane, Process};

/// The processes of a control plane, in the order in which they are shown.
pub const COMPONENTS: [&str; 4] = ["kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler"];
/// Of requests that the API server has served: how many, and how long they took in all.
const REQUESTS: &str = "apiserver_request_duration_seconds";

/// What was spent before.
pub struct Costs<'a> {
    plane: &'a Plane,
    resources: &'a [&'a str],
    processes: Vec<Process>,
    before: Vec<f64>,
    writes: (f64, f64),
}

/// What was spent.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// CPU time in seconds, of [`COMPONENTS`] and of who was measured; 0 where there is no such process.
    pub cpu: [f64; 5],
    /// Writes that were served, to anybody.
    pub writes: f64,
    /// Mean time of a write in the API server, in milliseconds.
    pub latency: f64,
}

impl<'a> Costs<'a> {
    /// From now on. `resources` are the kinds whose writes are counted.
    pub async fn begin(
        plane: &'a Plane,
        process: Option<&Process>,
        resources: &'a [&'a str],
    ) -> anyhow::Result<Self> {
        let mut processes = Vec::new();
        for component in COMPONENTS {
            processes.push(Process::of(plane.pid(component)?));
        }
        processes.extend(process.map(Process::same));
        let before = processes.iter().map(Process::cpu_seconds).collect::<anyhow::Result<_>>()?;
        Ok(Self { plane, resources, processes, before, writes: writes(plane, resources).await? })
    }

    /// Until now.
    pub async fn end(&self) -> anyhow::Result<Spent> {
        let mut cpu = [0.0; 5];
        for ((spent, process), before) in cpu.iter_mut().zip(&self.processes).zip(&self.before) {
            *spent = process.cpu_seconds()? - before;
        }
        let (count, seconds) = writes(self.plane, self.resources).await?;
        let count = count - self.writes.0;
        Ok(Spent { cpu, writes: count, latency: (seconds - self.writes.1) / count.max(1.0) * 1_000.0 })
    }
}

/// Writes so far, and the seconds that they took.
async fn writes(plane: &Plane, resources: &[&str]) -> anyhow::Result<(f64, f64)> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = plane.client().await?.request_text(request).await?;
    let sum = |name: &str| -> f64 {
        let start = format!("{REQUESTS}_{name}{{");
        let is_counted = |line: &&str| {
            line.starts_with(&start)
                && resources.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
                && ["POST", "PUT", "PATCH"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
        };
        let values =
            text.lines().filter(is_counted).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    };
    Ok((sum("count"), sum("sum")))
}
