//! Lists of objects in pages, and the selectors of lists and watches.
//!
//! Inputs: a request and the store. Output: a list. Invariant: all pages of a list are of one version (API conventions,
//! `continue`); the answer is `Expired` when that version is compacted.

use serde_json::{Value, json};

use super::{
    ApiServer, kinds::KINDS, refusal::Refusal, request::ApiRequest, response::shown, selector::Selector,
};

/// Selectors of a list or a watch.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    namespace: Option<String>,
    labels: Selector,
    fields: Selector,
}

impl Filter {
    /// Selectors of a request.
    pub fn of(call: &ApiRequest, namespace: Option<String>) -> Result<Self, Refusal> {
        let selector =
            |parameter| Selector::parse(call.text(parameter).unwrap_or_default()).map_err(Refusal::bad);
        Ok(Self { namespace, labels: selector("labelSelector")?, fields: selector("fieldSelector")? })
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| object["metadata"]["namespace"] == *namespace)
            && self.labels.matches_labels(object)
            && self.fields.matches_fields(object)
    }
}

impl ApiServer {
    /// A page of the objects of a kind, as of the version of its first page.
    pub(super) fn list(&self, kind: usize, filter: &Filter, call: &ApiRequest) -> Result<Value, Refusal> {
        let store = self.store();
        let token = call.text("continue").map(|token| {
            let (revision, key) = token.split_once(':').unwrap_or_default();
            (revision.parse::<u64>().unwrap_or_default(), key.to_owned())
        });
        let (revision, after) = token.unwrap_or_else(|| (store.revision(), String::new()));
        if revision < store.compacted() {
            let why = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.";
            return Err(Refusal::expired(why));
        }
        let objects = store.all_at(kind, revision);
        let mut matching = objects.iter().filter(|(key, object)| **key > after && filter.matches(object));
        let limit = call.text("limit").and_then(|text| text.parse().ok()).filter(|limit| *limit > 0);
        let page: Vec<_> = matching.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let left = matching.count();
        let rules = &KINDS[kind];
        let mut list = json!({
            "kind": format!("{}List", rules.kind), "apiVersion": rules.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
            "items": page.iter().map(|(_, object)| shown(object, call.form)).collect::<Vec<_>>(),
        });
        if call.form.metadata {
            list["kind"] = json!("PartialObjectMetadataList");
            list["apiVersion"] = json!("meta.k8s.io/v1");
        }
        if let Some((last, _)) = page.last().filter(|_| left > 0) {
            list["metadata"]["continue"] = json!(format!("{revision}:{last}"));
            let selects = call.text("labelSelector").or(call.text("fieldSelector")).is_some();
            list["metadata"]["remainingItemCount"] = json!(Some(left).filter(|_| !selects));
        }
        Ok(list)
    }
}
