//! Harness of tests that need more than Rust, Go, a C compiler and git: a machine for real nodes, or a program. As root it
//! installs the tools of a real node, once; where something is missing all the same, the tests are ignored, and the command
//! that runs them is named. With `CI=true` that is a failure.

use std::{
    env,
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Trial};
use nix::unistd::geteuid;

/// Installs what is missing; names it with `--check`.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/real-node/install.sh");
/// Tests that run at once: most wait most of the time.
const THREADS: usize = 6;

/// Makes tests of functions. A function that stands in no list is dead code, which the compiler tells.
#[macro_export]
macro_rules! trials {
    ($($kind:ident $($name:ident)::+),* $(,)?) => {
        vec![$($crate::trial!($kind $($name)::+)),*]
    };
}
#[doc(hidden)]
#[macro_export]
macro_rules! trial {
    (blocking $($name:ident)::+) => {
        $crate::harness::blocking(stringify!($($name)::+), || $($name)::+())
    };
    (waiting $($name:ident)::+) => {
        $crate::harness::blocking(stringify!($($name)::+), || $crate::harness::block_on($($name)::+()))
    };
}
/// A test that is a function.
pub fn blocking(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let name: String = name.split_whitespace().collect();
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// Runs a test as `#[tokio::test]` does.
pub fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

/// Runs the tests of a target: `trials` need a real node, `others` need nothing.
pub fn run(target: &str, trials: Vec<Trial>, others: Vec<Trial>) -> ExitCode {
    run_prepared(target, trials, others, prepare)
}

/// Runs the tests of a target: `trials` need a program that is in a package of Debian and Ubuntu, `others` need nothing.
pub fn run_with_program(
    target: &str,
    (program, package): (&str, &str),
    trials: Vec<Trial>,
    others: Vec<Trial>,
) -> ExitCode {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let lack = || Lack {
        why: format!("they need {program}"),
        remedy: format!("sudo apt-get install --yes {package} &&"),
    };
    run_prepared(target, trials, others, || if is_there { Ok(()) } else { Err(lack()) })
}

fn run_prepared(
    target: &str,
    trials: Vec<Trial>,
    others: Vec<Trial>,
    prepare: impl FnOnce() -> Result<(), Lack>,
) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(THREADS);
    }
    let wanted = trials.iter().any(|trial| is_wanted(&arguments, trial.name()));
    let lack = if arguments.list || !wanted { None } else { prepare().err() };
    let lacks = lack.is_some();
    if let Some(Lack { why, remedy }) = lack {
        if env::var("CI").is_ok_and(|ci| ci == "true") {
            eprintln!("CI=true, and {} tests cannot run: {why}", trials.len());
            return ExitCode::FAILURE;
        }
        println!(
            "\n{} tests are ignored: {why}. This runs them:\n\n    {remedy} cargo test --test {target}",
            trials.len()
        );
    }
    let ignored = |trial: Trial| trial.with_ignored_flag(lacks);
    let all = trials.into_iter().map(ignored).chain(others).collect();
    libtest_mimic::run(&arguments, all).exit_code()
}

fn is_wanted(arguments: &Arguments, name: &str) -> bool {
    let fits = |filter: &String| if arguments.exact { name == filter } else { name.contains(filter) };
    arguments.filter.as_ref().is_none_or(fits) && !arguments.skip.iter().any(fits)
}

/// Why the tests cannot run, and what to write before the command that runs them.
struct Lack {
    why: String,
    remedy: String,
}

fn prepare() -> Result<(), Lack> {
    let lack = |why: String, remedy: &str| Err(Lack { why, remedy: remedy.to_owned() });
    if !geteuid().is_root() {
        return lack("they need root".to_owned(), r#"sudo env "PATH=$PATH""#);
    }
    let check = || Command::new(INSTALL).arg("--check").output().expect("the script runs");
    let missing = check();
    if !missing.status.success() {
        let packages = String::from_utf8_lossy(&missing.stdout).trim().to_owned();
        if env::var("KUBE_NODE_NO_INSTALL").is_ok_and(|no| no == "1") {
            return lack(
                format!("KUBE_NODE_NO_INSTALL=1, and this machine lacks {packages}"),
                "tests/real-node/install.sh && env -u KUBE_NODE_NO_INSTALL",
            );
        }
        println!("tests/real-node/install.sh installs {packages}");
        let installed = Command::new(INSTALL).output().expect("the script runs");
        if !installed.status.success() || !check().status.success() {
            let said = String::from_utf8_lossy(&installed.stderr).trim().replace('\n', "; ");
            return lack(
                format!("{packages} could not be installed ({said})"),
                "tests/real-node/install.sh &&",
            );
        }
    }
    let namespaces = Command::new("unshare").args(["--mount", "--pid", "--net", "--fork", "true"]).output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        return lack("root may make no namespaces here".to_owned(), "outside of this container:");
    }
    Ok(())
}
