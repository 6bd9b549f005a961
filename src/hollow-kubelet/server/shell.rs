//! Simulated commands in hollow containers. No command is executed: a few behave as real ones, and every
//! other one reports success (unless another exit code is set) and prints its arguments.

use std::{ops::ControlFlow, time::Duration};

use bytes::Bytes;
use tokio::time::sleep;

use super::spdy::{Sink, Source};

/// Longest line read from a client, in bytes.
const LONGEST_LINE: usize = 64 << 10;
/// Exit code of a shell that cannot parse its input.
const MISUSE: i32 = 2;
/// Maximum depth of nested shells.
const DEPTH: u8 = 8;

/// Environment of a command.
pub struct Environment {
    /// Host name.
    pub hostname: String,
    /// Environment variables, in their order.
    pub variables: Vec<(String, String)>,
    /// Exit code of unknown commands.
    pub exit_code: i32,
}

/// Streams of a command; None for one that was not requested.
#[derive(Default)]
pub struct Terminal {
    /// Standard input.
    pub stdin: Option<Source>,
    /// Input received already, read before `stdin`.
    pub rest: Bytes,
    /// Standard output.
    pub stdout: Option<Sink>,
    /// Standard error.
    pub stderr: Option<Sink>,
    /// True for an interactive terminal.
    pub tty: bool,
    /// Copy of the output for a command without streams.
    pub captured: Option<Vec<u8>>,
}

impl Terminal {
    async fn print(&mut self, text: &str) {
        let text = if self.tty { text.replace('\n', "\r\n") } else { text.to_owned() };
        if let Some(captured) = &mut self.captured {
            captured.extend_from_slice(text.as_bytes());
        }
        if let Some(stdout) = &self.stdout {
            stdout.send(text).await;
        }
    }

    async fn print_error(&mut self, text: &str) {
        match &self.stderr {
            Some(stderr) => _ = stderr.send(text).await,
            None => self.print(text).await,
        }
    }

    async fn copy(&mut self) {
        while let Some(part) = self.read().await {
            if let Some(stdout) = &self.stdout {
                stdout.send(part).await;
            }
        }
    }

    /// Next part of the input; None at its end.
    async fn read(&mut self) -> Option<Bytes> {
        let part = match std::mem::take(&mut self.rest) {
            none if none.is_empty() => self.stdin.as_mut()?.recv().await?,
            rest => rest,
        };
        // Ctrl-D ends the input of a terminal.
        let end = part.iter().position(|byte| self.tty && *byte == 4);
        match end {
            Some(0) => {
                self.stdin = None;
                None
            }
            Some(end) => {
                self.stdin = None;
                Some(part.slice(..end))
            }
            None => Some(part),
        }
    }
}

/// Exit code of a command; a break if the command also ends the shell that runs it.
type Ended = ControlFlow<i32, i32>;

fn code_of(ended: Ended) -> i32 {
    match ended {
        ControlFlow::Continue(code) | ControlFlow::Break(code) => code,
    }
}

/// Runs a command; returns its exit code.
pub async fn run(environment: &Environment, terminal: &mut Terminal, command: &[String]) -> i32 {
    code_of(call(environment, terminal, command, DEPTH).await)
}

async fn call(environment: &Environment, terminal: &mut Terminal, command: &[String], depth: u8) -> Ended {
    let [program, arguments @ ..] = command else { return Ended::Continue(0) };
    let name = program.rsplit('/').next().unwrap_or(program);
    // Output of a command that succeeds; a command with another exit code returns it.
    let output = match (name, arguments) {
        ("true" | ":", _) => String::new(),
        ("exit", _) => {
            let code = arguments.first().map_or(Some(0), |code| code.parse::<u8>().ok().map(i32::from));
            return Ended::Break(code.unwrap_or(MISUSE));
        }
        ("echo", [flag, rest @ ..]) if flag == "-n" => rest.join(" "),
        ("echo", _) => format!("{}\n", arguments.join(" ")),
        ("pwd", []) => "/\n".to_owned(),
        ("hostname", []) => format!("{}\n", environment.hostname),
        ("env" | "printenv", []) => {
            let lines = environment.variables.iter().map(|(name, value)| format!("{name}={value}\n"));
            lines.collect::<Vec<_>>().concat()
        }
        ("printenv", [name]) if !variable(environment, name).is_empty() => {
            format!("{}\n", variable(environment, name))
        }
        ("false", _) | ("printenv", [_]) => return Ended::Continue(1),
        ("sleep", [time]) => {
            let Some(time) = span(time) else {
                terminal.print_error(&format!("sleep: invalid time interval '{time}'\n")).await;
                return Ended::Continue(1);
            };
            sleep(time).await;
            String::new()
        }
        ("cat", []) => {
            terminal.copy().await;
            String::new()
        }
        ("cat", files) => {
            for file in files {
                terminal.print_error(&format!("cat: {file}: No such file or directory\n")).await;
            }
            return Ended::Continue(1);
        }
        ("sh" | "bash" | "ash" | "dash", [flag, script, ..]) if flag == "-c" && depth > 0 => {
            let ended = Box::pin(script_of(environment, terminal, script, depth - 1)).await;
            return Ended::Continue(code_of(ended));
        }
        ("sh" | "bash" | "ash" | "dash", arguments)
            if depth > 0 && arguments.iter().all(|a| a.starts_with('-')) =>
        {
            return Ended::Continue(Box::pin(converse(environment, terminal, depth - 1)).await);
        }
        _ => {
            terminal.print(&format!("{}\n", command.join(" "))).await;
            if !terminal.tty {
                terminal.copy().await;
            }
            return Ended::Continue(environment.exit_code);
        }
    };
    terminal.print(&output).await;
    Ended::Continue(0)
}

/// Text of a variable in which `$(NAME)` stands for the value of an earlier variable, and `$$` for a dollar sign.
pub fn expand(text: &str, variables: &[(String, String)]) -> String {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let name = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        let value = name.and_then(|(name, end)| {
            let (_, value) = variables.iter().find(|(variable, _)| variable == name)?;
            Some((value.as_str(), end))
        });
        let (part, end) = value.unwrap_or(("$", after.strip_prefix('$').unwrap_or(after)));
        expanded.push_str(part);
        rest = end;
    }
    expanded + rest
}

/// Shell that reads its commands from the input.
async fn converse(environment: &Environment, terminal: &mut Terminal, depth: u8) -> i32 {
    let mut code = 0;
    loop {
        if terminal.tty {
            terminal.print("/ # ").await;
        }
        let Some(line) = line(terminal).await else { return code };
        match script_of(environment, terminal, &line, depth).await {
            Ended::Continue(last) => code = last,
            Ended::Break(code) => return code,
        }
    }
}

/// Reads a line of input, echoed on a terminal. The rest of the part stays for the next line.
async fn line(terminal: &mut Terminal) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let Some(part) = terminal.read().await else {
            return (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned());
        };
        let end = part.iter().position(|byte| [b'\n', b'\r'].contains(byte));
        let rest_of_line = part.slice(..end.unwrap_or(part.len()));
        if terminal.tty {
            terminal.print(&String::from_utf8_lossy(&rest_of_line)).await;
        }
        line.extend_from_slice(&rest_of_line);
        if let Some(end) = end {
            if terminal.tty {
                terminal.print("\n").await;
            }
            terminal.rest = part.slice(end + 1..);
            return Some(String::from_utf8_lossy(&line).into_owned());
        }
        line.truncate(LONGEST_LINE);
    }
}

/// Runs a shell's script, one command after the other.
async fn script_of(environment: &Environment, terminal: &mut Terminal, script: &str, depth: u8) -> Ended {
    let Some(commands) = parse(script, |name| variable(environment, name).to_owned()) else {
        // Unsupported syntax is handled as an unknown command.
        terminal.print(&format!("{script}\n")).await;
        return Ended::Continue(environment.exit_code);
    };
    let mut code = 0;
    for (when, words) in commands {
        let is_due = match when {
            When::Always => true,
            When::Worked => code == 0,
            When::Failed => code != 0,
        };
        if is_due {
            code = call(environment, terminal, &words, depth).await?;
        }
    }
    Ended::Continue(code)
}

fn variable<'a>(environment: &'a Environment, name: &str) -> &'a str {
    environment.variables.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// Time argument of `sleep`; an hour at most.
fn span(text: &str) -> Option<Duration> {
    let unit = match text.chars().last() {
        Some('m') => 60.0,
        Some('h') => 3_600.0,
        _ => 1.0,
    };
    let number = text.strip_suffix(['s', 'm', 'h']).unwrap_or(text);
    let seconds: f64 = number.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)?;
    Some(Duration::from_secs_f64((seconds * unit).min(3_600.0)))
}

/// Condition under which a command of a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// After a command that succeeded (`&&`).
    Worked,
    /// After a command that failed (`||`).
    Failed,
}

/// Commands of a script: words, quotes, variables, and `;`, `&&`, `||` between them. None for other syntax.
fn parse(script: &str, variable: impl Fn(&str) -> String) -> Option<Vec<(When, Vec<String>)>> {
    let mut commands = Vec::new();
    let (mut when, mut words, mut word) = (When::Always, Vec::new(), None::<String>);
    let mut rest = script.chars().peekable();
    let mut quote = None;
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().push(rest.next()?),
            (_, '$') => {
                let braced = rest.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                if name.is_empty() || (braced && rest.next() != Some('}')) {
                    return None;
                }
                word.get_or_insert_default().push_str(&variable(&name));
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, ';' | '\n' | '&' | '|') => {
                words.extend(word.take());
                let next = match c {
                    '&' if rest.next_if_eq(&'&').is_some() => When::Worked,
                    '|' if rest.next_if_eq(&'|').is_some() => When::Failed,
                    '&' | '|' => return None,
                    _ => When::Always,
                };
                if !words.is_empty() {
                    commands.push((when, std::mem::take(&mut words)));
                }
                when = next;
            }
            (_, '`') | (None, '<' | '>' | '(' | ')' | '{' | '}' | '*' | '#') => return None,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if !words.is_empty() {
        commands.push((when, words));
    }
    let is_plain =
        |word: &str| !["if", "for", "while", "case", "until", "do", "then", "function"].contains(&word);
    let plain = commands.iter().all(|(_, words)| words.first().is_some_and(|word| is_plain(word)));
    (quote.is_none() && plain).then_some(commands)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tokio::sync::Semaphore;

    use super::{
        super::spdy::{BUDGET, Feed},
        *,
    };

    fn environment() -> Environment {
        let variables = [("HOSTNAME".to_owned(), "web".to_owned())].into();
        Environment { hostname: "web".to_owned(), variables, exit_code: 7 }
    }

    async fn ran(command: &[&str], stdin: Option<&str>) -> (i32, String) {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let (feed, source) = Feed::new(&Arc::new(Semaphore::new(BUDGET)));
        if let Some(text) = stdin {
            assert!(feed.send(text.as_bytes()).await);
        }
        drop(feed);
        let (to, mut from) = tokio::sync::mpsc::channel(64);
        let mut terminal =
            Terminal { stdin: stdin.map(|_| source), stdout: Some(Sink::new(1, to)), ..Terminal::default() };
        let code = run(&environment(), &mut terminal, &command).await;
        drop(terminal);
        let mut output = Vec::new();
        while let Some(frame) = from.recv().await {
            // After the head of the frame.
            output.extend_from_slice(&frame[8..]);
        }
        (code, String::from_utf8(output).unwrap())
    }

    #[tokio::test]
    async fn commands_behave_as_they_would() {
        for (command, stdin, code, output) in [
            (&["echo", "a", "b"][..], None, 0, "a b\n"),
            (&["/bin/echo", "-n", "a"], None, 0, "a"),
            (&["true"], None, 0, ""),
            (&["false"], None, 1, ""),
            (&["hostname"], None, 0, "web\n"),
            (&["env"], None, 0, "HOSTNAME=web\n"),
            (&["printenv", "NONE"], None, 1, ""),
            (&["cat"], Some("to and fro"), 0, "to and fro"),
            (&["cat", "/etc/passwd"], None, 1, "cat: /etc/passwd: No such file or directory\n"),
            (&["sleep", "0.01"], None, 0, ""),
            (&["sleep", "long"], None, 1, "sleep: invalid time interval 'long'\n"),
            (&["sh", "-c", "exit 3"], None, 3, ""),
            (
                &["sh", "-c", "echo a; false || echo \"b $HOSTNAME\" && echo 'c $X'"],
                None,
                0,
                "a\nb web\nc $X\n",
            ),
            (&["sh", "-c", "false && echo never"], None, 1, ""),
            (&["sh", "-c", "bash -c 'exit 4'; echo on"], None, 0, "on\n"),
            (&["sh"], Some("echo a\necho b\nexit 5\necho c\n"), 5, "a\nb\n"),
            (&["sh"], Some("echo a\ncat\nb\nc"), 0, "a\nb\nc"),
            (&["sh", "-c", "ls | wc"], None, 7, "ls | wc\n"),
            (&["pg_dump", "-x"], None, 7, "pg_dump -x\n"),
            (&["import"], Some("rows"), 7, "import\nrows"),
            (&[], None, 0, ""),
        ] {
            assert_eq!(ran(command, stdin).await, (code, output.to_owned()), "{command:?}");
        }
    }

    #[test]
    fn a_variable_refers_to_earlier_ones() {
        for (text, expanded) in [
            ("on $(HOSTNAME):$(HOSTNAME)", "on web:web"),
            ("$(NONE) $(HOSTNAME $HOSTNAME $", "$(NONE) $(HOSTNAME $HOSTNAME $"),
            ("$$(HOSTNAME) $$$(HOSTNAME)", "$(HOSTNAME) $web"),
        ] {
            assert_eq!(expand(text, &environment().variables), expanded, "{text}");
        }
    }

    #[tokio::test]
    async fn lines_cost_no_tasks() {
        let lines = format!("{}exit 5\n", "\n".repeat(200_000));
        assert_eq!(ran(&["sh"], Some(&lines)).await, (5, String::new()));
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[tokio::test]
    async fn ctrl_d_ends_the_input_of_a_terminal() {
        let (feed, source) = Feed::new(&Arc::new(Semaphore::new(BUDGET)));
        assert!(feed.send(b"cat\ron\x04echo never\r").await);
        let stdin = Some(source);
        let mut terminal = Terminal { stdin, tty: true, captured: Some(Vec::new()), ..Terminal::default() };
        assert_eq!(run(&environment(), &mut terminal, &["sh".to_owned()]).await, 0);
        assert_eq!(String::from_utf8(terminal.captured.unwrap()).unwrap(), "/ # cat\r\n/ # ");
    }

    #[test]
    fn what_is_not_understood_is_left() {
        let commands = |script: &str| parse(script, |_| String::new()).map(|commands| commands.len());
        assert_eq!((commands("a; b"), commands(""), commands("a &&")), (Some(2), Some(0), Some(1)));
        for script in
            ["a | b", "a > b", "$(a)", "`a`", "a &", "'a", "\"a", "for x in y; do z; done", "a\\", "${a"]
        {
            assert_eq!(commands(script), None, "{script}");
        }
    }

    proptest! {
        #[test]
        fn no_script_is_too_strange(script: String, time: String) {
            let _ = parse(&script, ToOwned::to_owned);
            let _ = span(&time);
        }
    }
}
