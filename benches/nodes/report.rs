//! Figures as JSON, as a table, and as curves.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use crate::{
    Measured, Surroundings, System,
    idle::Idle,
    shared::{COMPONENTS, spread},
};

/// Width and height of a plot, and the room for its axes, in pixels.
const PLOT: (f64, f64, f64) = (720.0, 360.0, 48.0);

/// Writes all figures so far.
pub fn write(all: &[Measured], plots: &Path) -> anyhow::Result<()> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("nodes.json"), serde_json::to_string(all)?)?;
    fs::create_dir_all(plots)?;
    let mut counts: Vec<usize> = all.iter().map(|measured| measured.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    for nodes in counts {
        let of: Vec<&Measured> = all.iter().filter(|measured| measured.nodes == nodes).collect();
        fs::write(plots.join(format!("ready-{nodes}.svg")), plot(&of, nodes))?;
    }
    Ok(())
}

/// A table in Markdown: medians, with the least and the greatest.
pub fn table(all: &[Measured]) -> String {
    let mut groups: BTreeMap<(usize, System, Surroundings), Vec<&Measured>> = BTreeMap::new();
    for measured in all {
        groups.entry((measured.nodes, measured.system, measured.surroundings)).or_default().push(measured);
    }
    let mut text = String::from(
        "| nodes | system | seconds to Ready | never came | writes a node | ms a write | CPU, ms a node: kube-apiserver | etcd | controller-manager | scheduler | itself |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for ((nodes, system, around), of) in &groups {
        let system = named(*system, *around);
        let figure =
            |value: &dyn Fn(&Measured) -> f64| spread(&of.iter().map(|m| value(m)).collect::<Vec<_>>());
        let _ = write!(
            text,
            "| {nodes} | {system} | {} | {} | {} | {} |",
            figure(&|measured| measured.seconds),
            of.iter().map(|measured| measured.missing).max().unwrap_or(0),
            figure(&|measured| measured.writes_per_node),
            figure(&|measured| measured.latency),
        );
        for process in 0..=COMPONENTS.len() {
            let _ = write!(text, " {} |", figure(&|measured| measured.cpu_per_node[process]));
        }
        text.push('\n');
    }
    text += "\nIdle:\n\n| nodes | system | CPU, cores | kube-apiserver, cores | RSS, MiB | oldest Lease, s | turned not Ready | reconciliations of sets a minute |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for ((nodes, system, around), of) in groups {
        let system = named(system, around);
        let idle: Vec<&Idle> = of.iter().filter_map(|measured| measured.idle.as_ref()).collect();
        if idle.is_empty() {
            continue;
        }
        let figure =
            |value: fn(&Idle) -> f64| spread(&idle.iter().map(|idle| value(idle)).collect::<Vec<_>>());
        let _ = writeln!(
            text,
            "| {nodes} | {system} | {} | {} | {} | {} | {} | {} |",
            figure(|idle| idle.cores),
            figure(|idle| idle.apiserver_cores),
            figure(|idle| idle.rss_mib),
            figure(|idle| idle.oldest_lease),
            figure(|idle| idle.turned_not_ready as f64),
            figure(|idle| idle.set_reconciles.unwrap_or_default()),
        );
    }
    text
}

/// A system with what is there besides.
fn named(system: System, Surroundings { beside, reduced }: Surroundings) -> String {
    let mut name = format!("{system:?}");
    if beside > 0 {
        let _ = write!(name, " beside {beside}");
    }
    if reduced {
        name += ", without policies";
    }
    name
}

/// Ready nodes over time, a line a measurement.
fn plot(of: &[&Measured], nodes: usize) -> String {
    let (width, height, room) = PLOT;
    let longest = of.iter().map(|measured| measured.seconds).fold(1.0, f64::max);
    let at = |seconds: f64, ready: usize| {
        let x = room + seconds / longest * (width - 2.0 * room);
        let y = height - room - ready as f64 / nodes as f64 * (height - 2.0 * room);
        format!("{x:.1},{y:.1}")
    };
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>"##
    );
    let _ = write!(
        text,
        r##"<path d="M{} L{} L{}" fill="none" stroke="#888"/><text x="{room}" y="{}">{nodes} Ready</text><text x="{}" y="{}" text-anchor="end">{longest:.1} s</text>"##,
        at(0.0, nodes),
        at(0.0, 0),
        at(longest, 0),
        room - 8.0,
        width - room,
        height - room + 16.0,
    );
    for (turn, (system, color)) in
        [(System::Bare, "#888888"), (System::Kwok, "#d95f02"), (System::Ours, "#1b9e77")]
            .into_iter()
            .enumerate()
    {
        for measured in of.iter().filter(|measured| measured.system == system) {
            // A point a hundredth of the nodes is enough for the eye.
            let step = (measured.curve.len() / 100).max(1);
            let in_time = measured.curve.iter().filter(|(seconds, _)| *seconds <= measured.seconds + 0.01);
            let points: Vec<String> =
                in_time.step_by(step).map(|(seconds, ready)| at(*seconds, *ready)).collect();
            let _ = write!(
                text,
                r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="1.5"/>"#,
                points.join(" ")
            );
        }
        let y = height - room - 16.0 * (3 - turn) as f64;
        let _ = write!(
            text,
            r#"<text x="{}" y="{y}" text-anchor="end" fill="{color}">{system:?}</text>"#,
            width - room
        );
    }
    text + "</svg>\n"
}
