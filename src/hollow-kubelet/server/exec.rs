//! Commands in containers, and the containers' own streams (`exec`, `attach`, `run`).
//!
//! The streams are those of remotecommand, version 4: stdin, stdout, stderr, resize, and error, which carries
//! the final `Status`.

use std::{collections::HashMap, time::Duration};

use axum::{extract::Request, response::Response};
use futures::future::OptionFuture;
use http::StatusCode;
use kube_ext::environment;
use kube_node_cache::{PodView, VariableValue};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    access::Refusal,
    log_follower::LogFollower,
    logs::LogOptions,
    query::Query,
    shell::{self, Environment, Terminal},
    spdy::{self, Sink, Source},
    upgrade,
};
use crate::{
    pod::output::{Found, Output, Run, container},
    served_machine::ServedMachine,
};

/// Supported version of remotecommand.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Stream of a terminal's size, which only a terminal has.
const RESIZE: &str = "resize";
/// Timeout until a client has opened its streams.
const STREAMS_LIMIT: Duration = Duration::from_secs(30);
/// Timeout of a command of `run`.
const RUN_LIMIT: Duration = Duration::from_mins(1);

/// Kind of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// Command in a container.
    Exec,
    /// The container's own streams.
    Attach,
}

/// Work of a session.
enum Session {
    Exec {
        environment: Environment,
        command: Vec<String>,
    },
    /// Log of the container from now on.
    Attach(Box<LogFollower>),
}

/// Types of the streams that a client requests; None if it requests neither input nor output.
fn requested_streams(query: &Query<'_>) -> Option<Vec<&'static str>> {
    let tty = query.has("tty");
    let (stdin, stdout) = (query.has("input"), query.has("output"));
    // A terminal has one output stream.
    let stderr = query.has("error") && !tty;
    let streams = [("stdin", stdin), ("stdout", stdout), ("stderr", stderr), ("error", true), (RESIZE, tty)];
    let requested = streams.into_iter().filter_map(|(name, is_requested)| is_requested.then_some(name));
    (stdin || stdout || stderr).then(|| requested.collect())
}

/// A container of a pod and its current run, or the refusal of a kubelet if it does not run.
fn running<'a>(pod: &'a PodView, name: &str) -> Result<(Found<'a>, Run), Refusal> {
    let found = container(pod, name);
    let run = found.and_then(|found| Run::current(found.view?));
    let message = || format!("container not found ({name:?})");
    found.zip(run).ok_or_else(|| (StatusCode::INTERNAL_SERVER_ERROR, message()))
}

/// Answers a request for streams of a running container.
pub fn answer(
    shutdown: &CancellationToken,
    machine: &ServedMachine,
    pod: &PodView,
    name: &str,
    kind: SessionKind,
    request: Request,
) -> Result<Response, Refusal> {
    let (container, run) = running(pod, name)?;
    let query = Query::of(request.uri());
    let requested = requested_streams(&query).ok_or_else(|| {
        (StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr".to_owned())
    })?;
    let session = match kind {
        SessionKind::Exec => Session::Exec {
            environment: environment(machine, pod, &container),
            command: query.all("command").map(ToOwned::to_owned).collect(),
        },
        SessionKind::Attach => {
            let options = LogOptions { follow: true, tail: Some(0), ..LogOptions::default() };
            let log = LogFollower::new(machine, pod, &container, run, options, environment::now());
            Session::Attach(Box::new(log))
        }
    };
    Ok(upgrade::spdy(shutdown, request, PROTOCOL, move |streams| session.serve(requested, streams)))
}

/// Runs a command without streams in a running container; returns its output and its exit code.
pub async fn run(
    machine: &ServedMachine,
    pod: &PodView,
    name: &str,
    command: Vec<String>,
) -> Result<(Vec<u8>, i32), Refusal> {
    let (container, _) = running(pod, name)?;
    let mut terminal = Terminal { captured: Some(Vec::new()), ..Terminal::default() };
    let environment = environment(machine, pod, &container);
    let code = timeout(RUN_LIMIT, shell::run(&environment, &mut terminal, &command)).await;
    Ok((terminal.captured.unwrap_or_default(), code.unwrap_or(i32::from(u8::MAX))))
}

/// Environment of commands in a container.
fn environment(machine: &ServedMachine, pod: &PodView, container: &Found<'_>) -> Environment {
    let hostname: &str = if pod.spec.host_network { &machine.node } else { &pod.name };
    let variables = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOSTNAME", hostname),
        ("HOME", "/root"),
        ("KUBERNETES_SERVICE_PORT", "443"),
    ];
    let mut variables: Vec<_> = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    for (name, value) in &container.spec.env {
        let value = match value {
            VariableValue::Text(text) => shell::expand(text, &variables),
            VariableValue::Field(path) => field(pod, path).unwrap_or_default().to_owned(),
        };
        variables.retain(|(other, _)| **other != **name);
        variables.push((name.to_string(), value));
    }
    Environment {
        hostname: hostname.to_owned(),
        variables,
        exit_code: Output::of(&pod.spec, container.spec, container.role, &machine.settings.containers)
            .exec_exit_code,
    }
}

/// Value of a field that variables may refer to; None for one that the cache does not keep.
fn field<'a>(pod: &'a PodView, path: &str) -> Option<&'a str> {
    match path {
        "metadata.name" => Some(&pod.name),
        "metadata.namespace" => Some(&pod.namespace),
        "metadata.uid" => Some(&pod.uid),
        "spec.nodeName" => Some(&pod.node),
        "status.hostIP" | "status.hostIPs" => pod.status.host_ip.as_deref(),
        "status.podIP" | "status.podIPs" => pod.status.pod_ip.as_deref(),
        _ => None,
    }
}

impl Session {
    /// Runs the session on the streams that the client opens, and sends its final status.
    async fn serve(self, requested: Vec<&'static str>, opened: mpsc::Receiver<spdy::Stream>) {
        let collected = timeout(STREAMS_LIMIT, collect(requested, opened)).await;
        let Ok(Some((mut terminal, error))) = collected else { return };
        let out = [terminal.stdout.clone(), terminal.stderr.clone()];
        let code = match self {
            Self::Exec { environment, command } => shell::run(&environment, &mut terminal, &command).await,
            Self::Attach(log) => {
                attach(log, terminal).await;
                0
            }
        };
        error.send(status(code).to_string()).await;
        for sink in out.iter().flatten().chain([&error]) {
            sink.finish().await;
        }
    }
}

/// Sends a container's log, and echoes the client's input, until the log ends.
async fn attach(mut log: Box<LogFollower>, Terminal { mut stdin, stdout, .. }: Terminal) {
    while let Some(part) = tokio::select! {
        part = log.chunk() => part,
        Some(part @ Some(_)) = OptionFuture::from(stdin.as_mut().map(Source::recv)) => part,
    } {
        if let Some(stdout) = &stdout {
            stdout.send(part).await;
        }
    }
}

/// Waits for the requested streams; returns the terminal and the error stream. Any further stream is refused.
async fn collect(
    requested: Vec<&'static str>,
    mut opened: mpsc::Receiver<spdy::Stream>,
) -> Option<(Terminal, Sink)> {
    let mut streams = HashMap::new();
    while streams.len() < requested.len() {
        let stream = opened.recv().await?;
        let name = requested.iter().find(|name| stream.header("streamtype") == Some(name))?;
        streams.insert(*name, stream);
    }
    let mut take = |name| streams.remove(name);
    let terminal = Terminal {
        stdin: take("stdin").map(|stream| stream.source),
        stdout: take("stdout").map(|stream| stream.sink),
        stderr: take("stderr").map(|stream| stream.sink),
        // A hollow terminal has no size.
        tty: take(RESIZE).is_some(),
        ..Terminal::default()
    };
    Some((terminal, take("error")?.sink))
}

/// Final status of a command, as in remotecommand from version 4 on.
fn status(code: i32) -> Value {
    if code == 0 {
        return json!({ "metadata": {}, "status": "Success" });
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;

    #[test]
    fn streams_are_those_of_the_query() {
        let of = |query: &str| {
            let uri: Uri = format!("/exec/a/b/c?{query}").parse().unwrap();
            requested_streams(&Query::of(&uri))
        };
        assert_eq!(of("command=x"), None);
        let all = vec!["stdin", "stdout", "stderr", "error"];
        assert_eq!(of("input=1&output=1&error=1"), Some(all));
        let terminal = vec!["stdin", "stdout", "error", "resize"];
        assert_eq!(of("input=1&output=1&error=1&tty=1"), Some(terminal));
    }

    #[test]
    fn a_field_of_the_pod_is_the_value_of_a_variable() {
        let mut pod = PodView { name: "web".into(), node: "n".into(), ..PodView::default() };
        pod.status.pod_ip = Some("10.0.0.7".into());
        let values = ["metadata.name", "spec.nodeName", "status.podIP", "metadata.labels['a']"];
        assert_eq!(values.map(|path| field(&pod, path)), [Some("web"), Some("n"), Some("10.0.0.7"), None]);
    }

    #[test]
    fn an_exit_code_is_reported_as_kubectl_reads_it() {
        assert_eq!(status(0)["status"], "Success");
        let failed = status(3);
        assert_eq!(
            (&failed["reason"], &failed["details"]["causes"][0]["message"]),
            (&json!("NonZeroExitCode"), &json!("3"))
        );
    }
}
