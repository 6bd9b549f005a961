//! Secrets that may be left without a machine. No I/O.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::provider::MachineId;

/// The machine's identity by the name of the Secret.
#[derive(Debug, Default)]
pub struct NotedSecrets(Mutex<HashMap<String, MachineId>>);

impl NotedSecrets {
    /// Notes a Secret that stays if neither its machine nor its Node does.
    pub fn note(&self, name: &str, id: &MachineId) {
        self.0.lock().insert(name.to_owned(), id.clone());
    }

    /// All of them.
    pub fn all(&self) -> Vec<(String, MachineId)> {
        self.0.lock().iter().map(|(name, id)| (name.clone(), id.clone())).collect()
    }

    /// Forgets a Secret: it is gone, or its machine is there again.
    pub fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}
