//! cluster-autoscaler, as far as its orders go: a loop every ten seconds, deletions beside it, each asked for again until
//! it answers, scale-ups that are given up after a while; and it forgets everything when it is started again.

use std::collections::BTreeMap;

use kube_node_planner::autoscaling::InstanceState;

use crate::{operator::Operator, world::World};

/// Seconds between two loops.
const LOOP: i64 = 10;
/// Seconds after which a scale-up has failed.
const PROVISION: i64 = 45;
/// Seconds after which a deletion that failed is asked for again.
const RETRY: i64 = 7;

#[derive(Debug, Default)]
pub struct Caller {
    next_loop: i64,
    /// Nodes that are being emptied, and when their deletion is to be asked for.
    deletions: BTreeMap<String, i64>,
    /// A scale-up under way: since when, and how many.
    growing: Option<(i64, i32)>,
    quiet: u32,
}

impl Caller {
    /// The process is started again: it takes its taints off, and knows nothing.
    pub fn restart(&mut self, world: &mut World) {
        let names: Vec<String> = world.nodes.keys().cloned().collect();
        for name in names {
            world.empty(&name, false);
        }
        *self = Self { next_loop: world.now + 3, ..Self::default() };
    }

    /// Whether everything is as it should be, and has been for some loops.
    pub fn is_content(&self, world: &World) -> bool {
        self.quiet >= 4
            && world.nodes.values().all(|node| node.ready && !node.leaving && node.revision == world.revision)
            && i32::try_from(world.nodes.len()).unwrap() == world.needed()
    }

    pub fn work(&mut self, world: &mut World, operator: &mut Operator) {
        let due: Vec<String> =
            self.deletions.iter().filter(|(_, at)| **at <= world.now).map(|(name, _)| name.clone()).collect();
        for name in due {
            world.asked.insert(name.clone());
            // An answer may be lost on the way back, too; and then it is asked for again.
            let heard = operator.delete(world, &name).is_ok() && world.pick(6) > 0;
            if heard {
                self.deletions.remove(&name);
            } else if world.pick(4) == 0 {
                // It thinks better of it.
                self.deletions.remove(&name);
                world.empty(&name, false);
            } else {
                self.deletions.insert(name, world.now + RETRY);
            }
        }
        if world.now >= self.next_loop {
            self.next_loop = world.now + LOOP;
            self.turn(world, operator);
        }
    }

    fn turn(&mut self, world: &mut World, operator: &mut Operator) {
        self.quiet += 1;
        if !operator.refresh(world) {
            return;
        }
        let (Some(target), Some(instances)) = (operator.target_size(), operator.instances(world.now)) else {
            return;
        };
        let running: Vec<&String> = instances
            .iter()
            .filter(|(_, state)| *state == InstanceState::Running)
            .map(|(id, _)| id)
            .collect();
        let needed = world.needed();
        world.note(format_args!("a loop: {needed} needed, target {target}, {} running", running.len()));
        if let Some((since, delta)) = self.growing
            && world.now - since > PROVISION
        {
            self.growing = None;
            if i32::try_from(running.len()).unwrap() < target {
                // The whole of what was asked for, even where most of it came.
                let _ = operator.decrease(world, -delta);
                self.quiet = 0;
                return;
            }
        }
        // One whose deletion was accepted is not counted in the target any more.
        let leaving = running.iter().filter(|id| self.deletions.contains_key(**id)).count();
        let leaving = i32::try_from(leaving).unwrap();
        let counted = target - leaving;
        if counted < needed {
            self.quiet = 0;
            // Never beyond what the group may have.
            let delta = (needed - counted).min(world.set.bounds.max - target);
            if delta <= 0 {
                return;
            }
            match operator.increase(world, delta) {
                Ok(()) => self.growing = Some((world.now, delta)),
                // It would avoid the group for minutes.
                Err(why) => world.refused(&why),
            }
        } else if counted > needed && self.growing.is_none() {
            // What is not up yet is not removed, but waited for.
            let may = usize::try_from(counted - needed).unwrap();
            let candidates: Vec<String> = running
                .into_iter()
                .filter(|id| !self.deletions.contains_key(*id) && world.nodes.contains_key(*id))
                .take(may)
                .cloned()
                .collect();
            for name in candidates {
                self.quiet = 0;
                world.empty(&name, true);
                let at = world.now + 1 + i64::from(world.pick(15));
                self.deletions.insert(name, at);
            }
        }
        if self.growing.is_some() && i32::try_from(instances.len()).unwrap() >= target {
            self.growing = None;
        }
    }
}
