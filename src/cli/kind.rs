//! Objects of one kind by name, for commands that delete them.

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams},
};
use kube_ext::call::{ApiError, call};

/// Objects of one kind.
pub(super) struct Kind {
    resource: ApiResource,
    api: Api<DynamicObject>,
    params: ListParams,
}

impl Kind {
    /// The objects of a kind that a label selector selects.
    pub(super) fn of<K: Resource<DynamicType = ()>>(client: &Client, selector: &str) -> Self {
        let (resource, params) = (ApiResource::erase::<K>(&()), ListParams::default().labels(selector));
        Self { api: Api::all_with(client.clone(), &resource), resource, params }
    }

    /// Name of the kind.
    pub(super) fn name(&self) -> &str {
        &self.resource.kind
    }

    /// Names of the existing objects; none if the kind is not installed.
    pub(super) async fn names(&self) -> Result<Vec<String>, ApiError> {
        match call(format_args!("list {} objects", self.name()), self.api.list_metadata(&self.params)).await {
            Err(error) if error.is(404) => Ok(Vec::new()),
            listed => Ok(listed?.iter().map(ResourceExt::name_any).collect()),
        }
    }

    /// Deletes an object, which may be gone.
    pub(super) async fn delete(&self, name: &str) -> Result<(), ApiError> {
        let params = DeleteParams::default();
        match call(format_args!("delete {} {name}", self.name()), self.api.delete(name, &params)).await {
            Err(error) if !error.is(404) => Err(error),
            _ => Ok(()),
        }
    }
}
