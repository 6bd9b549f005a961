//! Calls on objects of one kind on behalf of a command. Errors name the kind and the object.

use std::fmt::Debug;

use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::call::{ApiError, call};

/// Reads an object; `None` if it does not exist.
pub async fn read<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    call(format_args!("read {} {name}", K::kind(&())), api.get_opt(name)).await
}

/// Lists objects; `what` names them in an error, as in «cannot list Nodes».
pub async fn list<K>(api: &Api<K>, what: &str, params: &ListParams) -> Result<Vec<K>, ApiError>
where
    K: Clone + Debug + DeserializeOwned,
{
    Ok(call(format_args!("list {what}"), api.list(params)).await?.items)
}

/// Objects per page of [`list_pages`].
const PAGE: u32 = 500;

/// Lists objects page by page, since thousands of them are megabytes, and passes each to `visit`.
pub async fn list_pages<K>(
    api: &Api<K>,
    what: &str,
    params: ListParams,
    visit: impl FnMut(K),
) -> Result<(), ApiError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut params, mut visit) = (params.limit(PAGE), visit);
    loop {
        let page = call(format_args!("list {what}"), api.list(&params)).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Applies a merge patch under this field manager.
pub async fn patch<K>(api: &Api<K>, name: &str, manager: &str, change: Value) -> Result<K, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    call(format_args!("change {} {name}", K::kind(&())), api.patch(name, &params, &Patch::Merge(change)))
        .await
}

/// Deletes an object. Returns false if it did not exist.
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<bool, ApiError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams::default();
    match call(format_args!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await {
        Err(error) if error.is(404) => Ok(false),
        other => other.map(|_| true),
    }
}
