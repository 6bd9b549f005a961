//! Steps of the test run. The result of a step tells if the next one makes sense.

mod arrival;
mod classes;
mod drains;
mod end;
mod rollout;

use super::test_run::TestRun;

/// Runs all steps, as far as they make sense.
pub(super) async fn all(run: &TestRun) -> anyhow::Result<()> {
    let Some(revision) = classes::accept(run).await? else { return Ok(()) };
    if arrival::arrive(run, &revision).await? {
        drains::drain(run).await?;
        rollout::roll(run, &revision).await?;
    }
    end::shrink(run).await?;
    end::check_history(run).await
}
