//! The page for people ([`mod@page`]) and its data ([`api`]). Requests may wait for [`changes`]; [`waiters`] limits how
//! many do.

mod api;
mod changes;
mod page;
mod waiters;

pub(super) use self::{
    api::{end, list, one, session},
    page::{is_wanted, page},
    waiters::Waiters,
};
