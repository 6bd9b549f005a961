//! Commands in containers, and the containers' own streams (`exec`, `attach`, `run`).
//!
//! The streams are those of remotecommand, version 4: stdin, stdout, stderr, resize, and error, which carries
//! the final `Status`.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use kube_node_cache::PodView;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Server,
    answers::text,
    connection::Caller,
    log_follower::Following,
    logs::LogOptions,
    route::Query,
    shell::{self, Place, Terminal},
    spdy,
    streams::{Sink, WAITING},
    upgrade,
};
use crate::{
    pod::output::{Output, Run, container},
    served_machine::ServedMachine,
};

/// Supported versions of remotecommand.
const PROTOCOLS: [&str; 1] = ["v4.channel.k8s.io"];
/// Timeout until a client has opened its streams.
const STREAMS_LIMIT: Duration = Duration::from_secs(30);
/// Timeout of a command of `run`.
const RUN_LIMIT: Duration = Duration::from_mins(1);

/// Kind of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Command in a container.
    Exec,
    /// The container's own streams.
    Attach,
}

/// A client's session.
struct Session {
    kind: Kind,
    command: Vec<String>,
    place: Place,
    /// Log of the container from now on.
    log: Option<Following>,
    wanted: Streams,
}

/// Streams that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn of(query: &Query<'_>) -> Option<Self> {
        let tty = query.has("tty");
        let streams = Self {
            stdin: query.has("input"),
            stdout: query.has("output"),
            // A terminal has one output stream.
            stderr: query.has("error") && !tty,
            tty,
        };
        (streams.stdin || streams.stdout || streams.stderr).then_some(streams)
    }
}

/// Answers a request for streams of a running container.
pub fn answer(
    server: &Arc<Server>,
    caller: &Caller,
    seen: &ServedMachine,
    pod: &PodView,
    name: &str,
    kind: Kind,
    request: Request<Incoming>,
) -> Response<Body> {
    let query = Query::of(request.uri());
    let Some(wanted) = Streams::of(&query) else {
        return text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr");
    };
    let session = Session {
        kind,
        command: query.all("command"),
        place: place(seen, pod, name),
        log: (kind == Kind::Attach).then(|| log(seen, pod, name)).flatten(),
        wanted,
    };
    upgrade::spdy(server, caller, request, &PROTOCOLS, |io, _| session.over_spdy(io))
}

/// Runs a command without streams; returns its output and its exit code.
pub async fn run(seen: &ServedMachine, pod: &PodView, name: &str, command: Vec<String>) -> (Vec<u8>, i32) {
    let mut terminal = Terminal { kept: Some(Vec::new()), ..Terminal::default() };
    let place = place(seen, pod, name);
    let code = timeout(RUN_LIMIT, shell::run(&place, &mut terminal, &command)).await;
    (terminal.kept.unwrap_or_default(), code.unwrap_or(i32::from(u8::MAX)))
}

/// Environment of commands in a container.
fn place(seen: &ServedMachine, pod: &PodView, name: &str) -> Place {
    let found = container(pod, name);
    let output = found.map(|found| Output::of(&pod.spec, found.spec, found.role, &seen.settings.containers));
    let host: &str = if pod.spec.host_network { &seen.node } else { &pod.name };
    let env = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOSTNAME", host),
        ("HOME", "/root"),
        ("KUBERNETES_SERVICE_PORT", "443"),
    ];
    Place {
        hostname: host.to_owned(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        exit_code: output.map_or(0, |output| output.exec_exit_code),
    }
}

/// Log of a container from now on.
fn log(seen: &ServedMachine, pod: &PodView, name: &str) -> Option<Following> {
    let found = container(pod, name)?;
    let run = Run::current(found.view?)?;
    let wanted = LogOptions { follow: true, tail: Some(0), ..LogOptions::default() };
    Some(Following::new(seen, pod, &found, run, wanted, Timestamp::now()))
}

impl Session {
    async fn over_spdy(self, io: impl AsyncRead + AsyncWrite + Send) {
        let (opened, streams) = mpsc::channel(WAITING);
        let done = CancellationToken::new();
        let work = async {
            let collected = timeout(STREAMS_LIMIT, collect(self.wanted, streams)).await;
            if let Ok(Some((terminal, error))) = collected {
                let out = [terminal.stdout.clone(), terminal.stderr.clone()];
                let status = self.serve(terminal).await;
                error.send(status.to_string()).await;
                for sink in out.iter().flatten().chain([&error]) {
                    sink.finish().await;
                }
            }
            done.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = spdy::serve(io, opened, done.clone()) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "the streams of a container ended");
                }
            }
            () = work => {}
        }
    }

    /// Runs the session; returns its final status.
    async fn serve(self, mut terminal: Terminal) -> Value {
        match self.kind {
            Kind::Exec => status(shell::run(&self.place, &mut terminal, &self.command).await),
            Kind::Attach => {
                let Terminal { stdin, stdout, .. } = terminal;
                let echoed = async {
                    if let (Some(mut stdin), Some(stdout)) = (stdin, &stdout) {
                        while let Some(part) = stdin.recv().await {
                            stdout.send(part).await;
                        }
                    }
                    std::future::pending::<()>().await;
                };
                let said = async {
                    let Some(mut log) = self.log else { return };
                    while let Some(part) = log.chunk().await {
                        if let Some(stdout) = &stdout {
                            stdout.send(part).await;
                        }
                    }
                };
                tokio::select! {
                    () = said => {}
                    () = echoed => {}
                }
                status(0)
            }
        }
    }
}

/// Waits for the requested streams; returns the terminal and the error stream. Any further stream is refused.
async fn collect(wanted: Streams, mut opened: mpsc::Receiver<spdy::Stream>) -> Option<(Terminal, Sink)> {
    let mut terminal = Terminal { tty: wanted.tty, ..Terminal::default() };
    let (mut error, mut has_resize) = (None, false);
    loop {
        let is_there = terminal.stdin.is_some() == wanted.stdin
            && terminal.stdout.is_some() == wanted.stdout
            && terminal.stderr.is_some() == wanted.stderr
            && has_resize == wanted.tty;
        if is_there && let Some(error) = error {
            return Some((terminal, error));
        }
        let stream = opened.recv().await?;
        match stream.header("streamtype") {
            Some("stdin") => terminal.stdin = Some(stream.source),
            Some("stdout") => terminal.stdout = Some(stream.sink),
            Some("stderr") => terminal.stderr = Some(stream.sink),
            Some("error") => error = Some(stream.sink),
            // A hollow terminal has no size.
            Some("resize") => has_resize = true,
            _ => return None,
        }
    }
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
            Streams::of(&Query::of(&uri))
        };
        assert_eq!(of("command=x"), None);
        let all = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(of("input=1&output=1&error=1"), Some(all));
        assert_eq!(of("input=1&output=1&error=1&tty=1"), Some(Streams { stderr: false, tty: true, ..all }));
    }

    #[test]
    fn an_exit_code_is_told_as_kubectl_reads_it() {
        assert_eq!(status(0)["status"], "Success");
        let failed = status(3);
        assert_eq!(
            (&failed["reason"], &failed["details"]["causes"][0]["message"]),
            (&json!("NonZeroExitCode"), &json!("3"))
        );
    }
}
