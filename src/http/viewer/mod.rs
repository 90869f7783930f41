//! The page for people ([`mod@page`]) and its data ([`api`]). Requests may wait for [`changes`]; [`waiters`] limits how
//! many do. [`operators`] see the sessions of all callers.

mod api;
mod changes;
mod operators;
mod page;
mod waiters;

pub(super) use self::{
    api::{cancel, decide, end, list, one, session},
    operators::OfOthers,
    page::{STYLE, frame, hash, is_wanted, page},
    waiters::Waiters,
};
