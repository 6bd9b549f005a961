//! Limit of hollow machines in one process, shared by `operator` and `hollow-host`.

use std::num::NonZeroUsize;

use clap::Args;
use hollow_kubelet::capacity;
use tracing::{info, warn};

/// Arguments of the limit of hollow machines.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hollow machines of this process")]
pub(super) struct RoomArgs {
    /// Maximum number of hollow machines in this process; computed from its memory limit when absent, 20480
    /// for 512Mi. A machine with hollow.load counts as ten
    #[arg(long, value_name = "COUNT")]
    max_machines: Option<NonZeroUsize>,
}

impl RoomArgs {
    /// The given maximum, else the maximum that the memory limit allows.
    pub(super) fn max_machines(&self) -> usize {
        if let Some(max) = self.max_machines {
            return max.get();
        }
        let limit = capacity::memory_limit();
        let max = capacity::machines(limit.unwrap_or_default());
        match limit {
            Some(limit) => {
                info!(limit, max, "carries as many hollow machines as its memory limit is good for");
            }
            None => {
                warn!(max, "no memory limit can be read: carries few hollow machines; give --max-machines");
            }
        }
        max
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        room: RoomArgs,
    }

    #[test]
    fn the_memory_decides_unless_somebody_does() {
        let of =
            |flags: &[&str]| Only::try_parse_from(["operator"].iter().chain(flags)).map(|only| only.room);
        assert_eq!(of(&["--max-machines=7"]).unwrap().max_machines(), 7);
        let by_memory = capacity::machines(capacity::memory_limit().unwrap());
        assert_eq!(of(&[]).unwrap().max_machines(), by_memory);
        assert!(of(&["--max-machines=0"]).is_err());
    }
}
