//! The run, step by step. A step gives back whether the next one makes sense.

mod arrival;
mod classes;
mod drains;
mod end;
mod rollout;

use super::course::Course;

/// All of them, as far as they make sense.
pub(super) async fn all(course: &Course) -> anyhow::Result<()> {
    let Some(revision) = classes::accept(course).await? else { return Ok(()) };
    if arrival::arrive(course, &revision).await? {
        drains::drain(course).await?;
        rollout::roll(course, &revision).await?;
    }
    end::shrink(course).await?;
    end::look_back(course).await
}
