//! Error texts for people.

use std::error::Error;

use kube::core::Status;

/// An error and its causes in one line. A refusal by the API server contributes its message only: kube's own
/// text contains the whole object.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = own_text(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = own_text(error);
        // Some libraries repeat their cause in their own text.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source().filter(|_| status(error).is_none());
    }
    text
}

/// The API server's response in an error or in one of its causes, if there was one.
pub fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    // A watch passes the status of an error event on as it is.
    let event = error.downcast_ref::<Box<Status>>().map(|status| &**status);
    status(error).or(event).or_else(|| refusal(error.source()?))
}

fn own_text(error: &(dyn Error + 'static)) -> String {
    match status(error) {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        _ => error.to_string(),
    }
}

fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    // A boxed source is an error of its own type.
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(|boxed| &**boxed);
    let kube::Error::Api(status) = boxed.or_else(|| error.downcast_ref())? else { return None };
    Some(status)
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot create Node a")]
    struct Call(#[source] Box<kube::Error>);

    #[test]
    fn the_message_of_the_api_server_is_said_once() {
        let status = kube::core::Status::failure("denied by a policy", "Invalid").with_code(422);
        let error = Call(Box::new(kube::Error::Api(status.boxed())));
        assert_eq!(chain(&error), "cannot create Node a: denied by a policy");
    }

    #[test]
    fn a_refusal_is_found_in_every_error_of_a_watch() {
        let status = || kube::core::Status::failure("no right to watch", "Forbidden").with_code(403).boxed();
        for error in [
            watcher::Error::WatchError(status()),
            watcher::Error::WatchStartFailed(kube::Error::Api(status())),
        ] {
            assert_eq!(refusal(&error).map(|status| status.code), Some(403), "{error}");
        }
        assert_eq!(refusal(&watcher::Error::NoResourceVersion), None);
    }
}
