//! Calls on objects of one kind on behalf of a command. Errors name the kind and the object.

use std::{fmt::Debug, time::Duration};

use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::sleep;

use crate::call::{ApiError, call};

/// Bounds of a type that names its kind, as every generated one does.
pub trait Typed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> Typed for K {}

/// Reads an object; `None` if it does not exist.
pub async fn read<K: Typed>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError> {
    call(format!("read {} {name}", K::kind(&())), api.get_opt(name)).await
}

/// Lists objects; `what` names them in an error, as in «cannot list Nodes».
pub async fn list<K: Typed>(api: &Api<K>, what: &str, params: &ListParams) -> Result<Vec<K>, ApiError> {
    Ok(page(api, what, params).await?.items)
}

/// Attempts at a list that the API server puts off, one each second (client-go makes as many).
const ATTEMPTS: u32 = 10;

/// Lists one page. For some seconds after a CRD has changed, the API server asks to come again later (429).
async fn page<K: Typed>(api: &Api<K>, what: &str, params: &ListParams) -> Result<ObjectList<K>, ApiError> {
    for _ in 1..ATTEMPTS {
        match call(format!("list {what}"), api.list(params)).await {
            Err(error) if error.is(429) => sleep(Duration::from_secs(1)).await,
            other => return other,
        }
    }
    call(format!("list {what}"), api.list(params)).await
}

/// Objects per page of [`list_pages`].
const PAGE: u32 = 500;

/// Lists objects page by page, since thousands of them are megabytes, and passes each to `visit`.
pub async fn list_pages<K: Typed>(
    api: &Api<K>,
    what: &str,
    params: ListParams,
    visit: impl FnMut(K),
) -> Result<(), ApiError> {
    let (mut params, mut visit) = (params.limit(PAGE), visit);
    loop {
        let page = page(api, what, &params).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Applies a merge patch under this field manager.
pub async fn patch<K: Typed>(api: &Api<K>, name: &str, manager: &str, change: Value) -> Result<K, ApiError> {
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    call(format!("change {} {name}", K::kind(&())), api.patch(name, &params, &Patch::Merge(change))).await
}

/// Deletes an object. Returns false if it did not exist.
pub async fn delete<K: Typed>(api: &Api<K>, name: &str) -> Result<bool, ApiError> {
    let params = DeleteParams::default();
    match call(format!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await {
        Err(error) if error.is(404) => Ok(false),
        other => other.map(|_| true),
    }
}
