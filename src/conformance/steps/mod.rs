//! Steps of the test run. The result of a step tells if the next one makes sense.

mod arrival;
mod classes;
mod drains;
mod end;
mod rollout;

use super::test_run::TestRun;

/// Runs all steps, as far as they make sense.
pub(super) async fn all(test_run: &TestRun) -> anyhow::Result<()> {
    let Some(revision) = classes::accept(test_run).await? else { return Ok(()) };
    if arrival::arrive(test_run, &revision).await? {
        drains::drain(test_run).await?;
        rollout::roll(test_run, &revision).await?;
    }
    end::shrink(test_run).await?;
    end::look_back(test_run).await
}
